#include "client/coordrun/read_lines.h"

#include <unistd.h>

#include <cerrno>

namespace coordd {

void ReadLines(UniqueFd& fd, LineSplitter& lines, const LineSplitter::Emit& emit) {
  char buffer[16 << 10];
  const ssize_t got = read(fd.get(), buffer, sizeof(buffer));
  if (got > 0) {
    lines.Feed(absl::string_view(buffer, static_cast<size_t>(got)), emit);
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    lines.Finish(emit);
    fd.Close();
  }
}

}  // namespace coordd
