#include "client/coordrun/wire/frame.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/coordrun/process/line_splitter.h"

// <RS> kind more source " " text: "\x1eo.3 epoch 1". `more` is '+' when the next line with this
// kind and source goes on with it, else '.'.

namespace coordd {
namespace {

constexpr char kMark = '\x1e';
constexpr size_t kHeadBytes = 16;  // at most
// What no honest agent exceeds: a report, or a line that LineSplitter has let through.
constexpr size_t kMaxFrameBytes = 2 * kMaxLineBytes;

bool IsKind(char c) { return c == 'c' || c == 'o' || c == 'e'; }

}  // namespace

std::string PieceText(const OutputPiece& piece) {
  return absl::StrCat(std::string(1, static_cast<char>(piece.end)), piece.text);
}

std::optional<OutputPiece> ParsePieceText(absl::string_view text) {
  const auto end = static_cast<PieceEnd>(text.empty() ? '?' : text[0]);
  const bool known = EndsLine(end) || end == PieceEnd::kReturn || end == PieceEnd::kNone;
  if (!known) return std::nullopt;
  return OutputPiece{text.substr(1), end};
}

std::string EncodeFrame(const Frame& frame) {
  std::string lines;
  absl::string_view left = frame.text;
  do {
    const absl::string_view piece = left.substr(0, kMaxFrameLineBytes - kHeadBytes);
    left.remove_prefix(piece.size());
    lines.push_back(kMark);
    lines.push_back(static_cast<char>(frame.kind));
    lines.push_back(left.empty() ? '.' : '+');
    absl::StrAppend(&lines, frame.source, " ", piece, "\n");
  } while (!left.empty());
  return lines;
}

bool FrameReader::is_frame(absl::string_view line) {
  return line.size() >= 5 && line[0] == kMark && IsKind(line[1]) &&
         (line[2] == '.' || line[2] == '+');
}

std::optional<Frame> FrameReader::Feed(absl::string_view line) {
  if (!is_frame(line)) return std::nullopt;
  const size_t space = line.find(' ');
  Frame frame;
  frame.kind = static_cast<FrameKind>(line[1]);
  if (space == absl::string_view::npos ||
      !absl::SimpleAtoi(line.substr(3, space - 3), &frame.source)) {
    return std::nullopt;
  }
  const auto key = std::make_pair(frame.kind, frame.source);
  std::string& whole = partial_[key];
  const absl::string_view piece = line.substr(space + 1);
  if (whole.size() + piece.size() <= kMaxFrameBytes) absl::StrAppend(&whole, piece);
  if (line[2] == '+') return std::nullopt;
  frame.text = std::move(whole);
  partial_.erase(key);
  return frame;
}

}  // namespace coordd
