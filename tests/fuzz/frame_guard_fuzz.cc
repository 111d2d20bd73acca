// Whatever a client sends, in whatever pieces: the verdict is the same, and what was taken is
// within the bounds.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "server/door/frame_guard.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  constexpr absl::string_view kHello("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  const absl::Time now = absl::UnixEpoch();
  const size_t piece = data[0] + size_t{1};
  const absl::string_view said(reinterpret_cast<const char*>(data) + 1, size - 1);
  coordd::FrameGuard whole(coordd::FrameBounds(), now), pieces(coordd::FrameBounds(), now);
  if (!whole.Take(kHello, now).ok() || !pieces.Take(kHello, now).ok()) abort();
  const absl::Status verdict = whole.Take(said, now);
  absl::Status by_pieces;
  for (size_t at = 0; at < said.size() && by_pieces.ok(); at += piece)
    by_pieces = pieces.Take(said.substr(at, piece), now);
  if (verdict != by_pieces) abort();
  return 0;
}
