#include "common/base/own_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr size_t kMaxBytes = 64 << 10;

}  // namespace

absl::StatusOr<std::string> ReadOwnFile(const std::string& path, absl::string_view kind) {
  return ReadFileOf(geteuid(), path, kind);
}

absl::StatusOr<std::string> ReadFileOf(uid_t owner, const std::string& path,
                                       absl::string_view kind) {
  const auto unreadable = [&](int error) {
    return absl::StrCat(kind, " ", path, " cannot be read: ", std::strerror(error));
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    return error == ENOENT ? absl::NotFoundError(unreadable(error))
                           : absl::UnavailableError(unreadable(error));
  }
  struct stat found = {};
  fstat(fd, &found);
  if (found.st_uid != owner) {
    close(fd);
    return absl::FailedPreconditionError(absl::StrCat(kind, " ", path, " belongs to user ",
                                                      found.st_uid, "; expected ",
                                                      owner == geteuid() ? "ours, " : "", owner));
  }
  std::string text(kMaxBytes, '\0');
  const ssize_t size = read(fd, text.data(), text.size());
  const int error = errno;
  close(fd);
  if (size < 0) return absl::UnavailableError(unreadable(error));
  text.resize(static_cast<size_t>(size));
  return text;
}

}  // namespace coordd
