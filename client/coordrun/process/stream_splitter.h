// Output of a worker in the pieces in which people see it come: lines, the states of a progress
// bar, and what waits behind a prompt. PURE
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coordd {

// What ends a piece. The values travel from agents to coordrun.
enum class PieceEnd : char {
  kNewline = 'n',
  kReturnNewline = 'w',  // "\r\n"
  kReturn = 'r',         // the next piece overwrites this one
  kNone = 'o',           // the next piece goes on behind it
};
bool EndsLine(PieceEnd end);
// The bytes themselves.
absl::string_view BytesOf(PieceEnd end);

struct OutputPiece {
  absl::string_view text;  // without '\r' and '\n'
  PieceEnd end = PieceEnd::kNewline;
};

// What has no end is passed on when it has been still for so long,
inline constexpr absl::Duration kStill = absl::Milliseconds(100);
// and at the latest when its first byte is so old: a program may print a dot now and then.
inline constexpr absl::Duration kOldest = absl::Seconds(1);

// Every byte comes out once, in order: the texts with their ends are the stream. Not thread-safe:
// one owner.
class StreamSplitter {
 public:
  using Emit = std::function<void(const OutputPiece& piece)>;

  void Feed(absl::string_view bytes, absl::Time now, const Emit& emit);
  // Passes on what is due.
  void Tick(absl::Time now, const Emit& emit);
  // The stream has ended, or its process has: passes on what is left.
  void Finish(const Emit& emit);
  absl::Time NextDeadline() const;  // of Tick

 private:
  std::string partial_;
  absl::Time first_byte_, last_byte_;  // of partial_
};

}  // namespace coordd
