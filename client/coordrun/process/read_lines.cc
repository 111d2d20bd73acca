#include "client/coordrun/process/read_lines.h"

#include <unistd.h>

#include <cerrno>
#include <functional>

namespace coordd {

namespace {

// What is there; false at the end of the stream.
bool Read(const OwnedFd& fd, const std::function<void(absl::string_view bytes)>& take) {
  char buffer[16 << 10];
  const ssize_t got = read(fd.get(), buffer, sizeof(buffer));
  if (got > 0) take(absl::string_view(buffer, static_cast<size_t>(got)));
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace

void ReadLines(OwnedFd& fd, LineSplitter& lines, const LineSplitter::Emit& emit) {
  if (Read(fd, [&](absl::string_view bytes) { lines.Feed(bytes, emit); })) return;
  lines.Finish(emit);
  fd.Close();
}

void ReadPieces(OwnedFd& fd, StreamSplitter& pieces, absl::Time now,
                const StreamSplitter::Emit& emit) {
  if (Read(fd, [&](absl::string_view bytes) { pieces.Feed(bytes, now, emit); })) return;
  pieces.Finish(emit);
  fd.Close();
}

}  // namespace coordd
