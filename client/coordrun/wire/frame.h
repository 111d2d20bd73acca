// How an agent (agent.h) speaks to coordrun: lines of text on its stdout, which may come mixed with
// those of other agents and with what a login shell prints. PURE
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "client/coordrun/process/stream_splitter.h"

namespace coordd {

// srun takes over up to 1024 bytes of a task's output at a time: a line within it arrives whole.
inline constexpr size_t kMaxFrameLineBytes = 1000;

enum class FrameKind : char {
  kControl = 'c',  // JSON (agent_messages.h); `source` is the agent's number
  kOut = 'o',      // what worker `source` has said, as PieceText has it
  kErr = 'e',
};

struct Frame {
  FrameKind kind = FrameKind::kControl;
  int32_t source = 0;
  std::string text;
  friend bool operator==(const Frame&, const Frame&) = default;
};

// A piece of a worker's output as the text of a frame, and back: its end, then its text. Nothing:
// it is none.
std::string PieceText(const OutputPiece& piece);
std::optional<OutputPiece> ParsePieceText(absl::string_view text);

// One or more lines, each with its end. `frame.text` has no line end in it.
std::string EncodeFrame(const Frame& frame);

// Not thread-safe: one owner.
class FrameReader {
 public:
  // A line without its end. Nothing: it is the first part of a frame, or none at all (is_frame says
  // which).
  std::optional<Frame> Feed(absl::string_view line);
  static bool is_frame(absl::string_view line);

 private:
  std::map<std::pair<FrameKind, int32_t>, std::string> partial_;
};

}  // namespace coordd
