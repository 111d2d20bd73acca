#include "client/coordrun/process/run_directory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/atomic_file.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

constexpr int kTokenBytes = 32;

std::string ParentDirectory(const Environment& environment) {
  for (const char* name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const auto found = environment.find(name);
    if (found == environment.end() || found->second.empty()) continue;
    // Jobs of a scheduler inherit /run/user/UID of a session that is not there.
    if (access(found->second.c_str(), W_OK | X_OK) == 0) return found->second;
  }
  return "/tmp";
}

constexpr char kPrefix[] = "coordrun-";
constexpr char kLock[] = "/lock";

// Never closed: the lock ends with the last process that has it.
bool Lock(const std::string& path, int flags) {
  const int fd = open((path + kLock).c_str(), flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return false;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
  close(fd);
  return false;
}

bool OwnedByUs(const std::string& path) {
  struct stat found {};
  return lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid();
}

void RemoveAbandoned(const std::string& parent) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
    const std::string path = entry.path().string();
    if (!absl::StartsWith(entry.path().filename().string(), kPrefix) || !OwnedByUs(path)) continue;
    // One without a lock is being made.
    if (Lock(path, 0)) std::filesystem::remove_all(path, error);
  }
}

}  // namespace

absl::StatusOr<std::string> MakeRunDirectory(const Environment& environment,
                                             const std::string& parent) {
  const std::string folder = parent.empty() ? ParentDirectory(environment) : parent;
  RemoveAbandoned(folder);
  // Under another name until it is locked: others that start now look for abandoned ones.
  std::string unlocked = absl::StrCat(folder, "/.", kPrefix, "XXXXXX");
  if (mkdtemp(unlocked.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("a directory ", unlocked, " cannot be made: ", std::strerror(errno)));
  }
  Lock(unlocked, O_CREAT);
  const std::string path = absl::StrCat(folder, "/", unlocked.substr(folder.size() + 2));
  if (rename(unlocked.c_str(), path.c_str()) != 0) {
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
