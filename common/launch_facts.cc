#include "common/launch_facts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/host_identity.h"

namespace coordd {
namespace {

// A line for each of a million slots.
constexpr size_t kMaxFileBytes = size_t{16} << 20;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  // O_NONBLOCK: a path that is a pipe must not hang.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat found = {};
  if (fd < 0 || fstat(fd, &found) != 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return absl::NotFoundError(absl::StrCat(path, " cannot be read: ", std::strerror(error)));
  }
  std::string text;
  if (S_ISREG(found.st_mode) && static_cast<size_t>(found.st_size) <= kMaxFileBytes) {
    text.resize(static_cast<size_t>(found.st_size));
    const ssize_t size = read(fd, text.data(), text.size());
    text.resize(size > 0 ? static_cast<size_t>(size) : 0);
    close(fd);
    return text;
  }
  close(fd);
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is no file of at most ", kMaxFileBytes, " bytes"));
}

}  // namespace

LaunchFacts ThisLaunchFacts() { return {ThisHost("").hostname, ReadFile}; }

}  // namespace coordd
