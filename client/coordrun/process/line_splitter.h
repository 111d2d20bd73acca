// Output of a process as whole lines with the process's name before each. PURE
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/coordrun/process/stream_splitter.h"

namespace coordd {

// A longer line is passed on in pieces: a process that never ends its line cannot make us remember
// it for ever.
inline constexpr size_t kMaxLineBytes = 64 << 10;

// Not thread-safe: one owner.
class LineSplitter {
 public:
  using Emit = std::function<void(absl::string_view line)>;  // without its line end

  // Calls `emit` for each line that `bytes` completes. "\r\n" counts as a line end, a lone "\r"
  // (progress bars) as any other byte.
  void Feed(absl::string_view bytes, const Emit& emit);
  // The stream has ended: what is left is a line, too.
  void Finish(const Emit& emit);

 private:
  std::string partial_;
};

// The last lines of a stream, for the account of a failure.
class TailLines {
 public:
  explicit TailLines(size_t count) : count_(count) {}
  void Add(absl::string_view line, absl::Time now = absl::InfinitePast());
  // Adds a piece of a line: what is overwritten is forgotten.
  void Add(const OutputPiece& piece, absl::Time now = absl::InfinitePast());
  const std::deque<std::string>& lines() const { return lines_; }
  // Those of which a piece came then or later.
  std::deque<std::string> Since(absl::Time then) const;

 private:
  size_t count_;
  std::deque<std::string> lines_;
  std::deque<absl::Time> times_;            // of their last pieces
  PieceEnd last_end_ = PieceEnd::kNewline;  // of the last piece
};

// "[3] ", as wide as that of the largest rank; with `colour` in the rank's own, as terminals do it.
std::string RankPrefix(int32_t rank, int32_t size, bool colour);

}  // namespace coordd
