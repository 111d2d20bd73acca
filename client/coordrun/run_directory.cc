#include "client/coordrun/run_directory.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/atomic_file.h"
#include "common/random.h"
#include "common/status_macros.h"

namespace coordd {
namespace {

constexpr int kTokenBytes = 32;

std::string ParentDirectory(const Environment& environment) {
  for (const char* name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const auto found = environment.find(name);
    if (found != environment.end() && !found->second.empty()) return found->second;
  }
  return "/tmp";
}

}  // namespace

absl::StatusOr<std::string> MakeRunDirectory(const Environment& environment) {
  std::string path = ParentDirectory(environment) + "/coordrun-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("a directory ", path, " cannot be made: ", std::strerror(errno)));
  }
  return path;
}

absl::StatusOr<std::string> WriteToken(const std::string& directory) {
  const std::string path = directory + "/token";
  COORDD_RETURN_IF_ERROR(WriteFileAtomically(path, SecretHex(kTokenBytes), 0600));
  return path;
}

}  // namespace coordd
