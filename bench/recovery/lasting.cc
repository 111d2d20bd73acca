#include "bench/recovery/lasting.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace coordd::bench {

Directory::Directory() {
  std::error_code error;
  path_ = std::filesystem::temp_directory_path(error).string() + "/coordd-bench.XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) path_.clear();
}

Directory::~Directory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<std::unique_ptr<ServerProcess>> StartLasting(const std::string& listen,
                                                            const std::string& state) {
  return ServerProcess::Start({BesideUs("coordd"), "--listen", listen, "--http", "off", "--store",
                               absl::StrCat("sqlite:", state), "--log-level", "error",
                               "--exit-with", absl::StrCat(getpid()), "--connection-file", ""});
}

}  // namespace coordd::bench
