#include "common/base/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <climits>

namespace coordd {
namespace {

enum class Stream { kInherited, kClosed, kTaken };

Stream Look(int fd) {
  const int flags = fcntl(fd, F_GETFD);
  if (flags < 0) return Stream::kClosed;
  return (flags & FD_CLOEXEC) != 0 ? Stream::kTaken : Stream::kInherited;
}

}  // namespace

void OpenStandardStreams(char** argv) {
  bool taken = false;
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    const Stream stream = Look(fd);
    if (stream == Stream::kInherited) continue;
    taken = taken || stream == Stream::kTaken;
    const int null = open("/dev/null", O_RDWR);
    if (null < 0) return;  // nothing better can be had
    if (null == fd) continue;
    const bool placed = dup2(null, fd) == fd;
    close(null);
    if (!placed) return;
  }
  if (!taken) return;
  // The name of the file and not /proc/self/exe, which ps would show.
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (length <= 0) return;
  self[length] = '\0';
  execv(self, argv);
}

}  // namespace coordd
