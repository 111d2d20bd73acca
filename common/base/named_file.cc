#include "common/base/named_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/duration_text.h"

namespace coordd {
namespace {

absl::Status NoFile(const std::string& path, mode_t mode) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is ", KindOfFile(mode), ", expected a file"));
}

// False: nothing came, and no end. Where `fd` is a file it does not wait.
bool AwaitBytes(int fd, absl::Time deadline) {
  pollfd one = {.fd = fd, .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    const absl::Duration left = std::max(deadline - Clock::Real().Now(), absl::ZeroDuration());
    ready = poll(&one, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

}  // namespace

absl::string_view KindOfFile(mode_t mode) {
  if (S_ISREG(mode)) return "a file";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISLNK(mode)) return "a link";
  return "a device";
}

absl::Status ExpectFile(int fd, const std::string& path) {
  struct stat found = {};
  if (fstat(fd, &found) == 0 && S_ISREG(found.st_mode)) return absl::OkStatus();
  return NoFile(path, found.st_mode);
}

absl::Status ExpectFileOrNothing(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0 || S_ISREG(found.st_mode)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is ", KindOfFile(found.st_mode), ", expected a file or a new name"));
}

absl::StatusOr<OwnedFd> OpenToWrite(const std::string& path, int flags, mode_t mode) {
  OwnedFd file(open(path.c_str(), flags | O_WRONLY | O_CLOEXEC | O_NONBLOCK, mode));
  const int error = errno;
  struct stat found = {};
  // A pipe that nobody reads cannot be opened so, nor can a socket or a folder.
  const bool is_seen = (file.valid() ? fstat(file.get(), &found) : stat(path.c_str(), &found)) == 0;
  if (is_seen && !S_ISREG(found.st_mode) && !S_ISCHR(found.st_mode))
    return NoFile(path, found.st_mode);
  if (file.valid()) return file;
  return absl::UnavailableError(absl::StrCat(path, " cannot be written: ", std::strerror(error)));
}

absl::StatusOr<std::string> ReadNamedFile(const std::string& path, size_t bytes_max,
                                          absl::Duration pipe_within) {
  const auto unreadable = [](int error) {
    return absl::InvalidArgumentError(absl::StrCat("cannot be read: ", std::strerror(error)));
  };
  const OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat found = {};
  if (!file.valid() || fstat(file.get(), &found) != 0) return unreadable(errno);
  if (S_ISDIR(found.st_mode)) return absl::InvalidArgumentError("is a folder; expected a file");
  std::string text(bytes_max + 1, '\0');
  size_t size = 0;
  const absl::Time deadline =
      Clock::Real().Now() + pipe_within;  // of all of it, however slowly it comes
  while (size < text.size()) {
    if (!AwaitBytes(file.get(), deadline)) {
      return absl::InvalidArgumentError(
          absl::StrCat("is ", KindOfFile(found.st_mode), " that did not end within ",
                       DurationText(pipe_within), "; expected a file, or one who writes into it"));
    }
    const ssize_t got = read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return unreadable(errno);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  return text;
}

}  // namespace coordd
