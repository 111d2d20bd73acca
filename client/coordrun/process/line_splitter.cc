#include "client/coordrun/process/line_splitter.h"

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

absl::string_view WithoutCarriageReturn(absl::string_view line) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

}  // namespace

void LineSplitter::Feed(absl::string_view bytes, const Emit& emit) {
  while (!bytes.empty()) {
    const size_t room = kMaxLineBytes - partial_.size();
    const size_t end = bytes.find('\n');
    if (end != absl::string_view::npos && end <= room) {
      if (partial_.empty()) {
        emit(WithoutCarriageReturn(bytes.substr(0, end)));
      } else {
        absl::StrAppend(&partial_, bytes.substr(0, end));
        emit(WithoutCarriageReturn(partial_));
        partial_.clear();
      }
      bytes.remove_prefix(end + 1);
      continue;
    }
    const absl::string_view piece = bytes.substr(0, room);
    absl::StrAppend(&partial_, piece);
    bytes.remove_prefix(piece.size());
    if (partial_.size() == kMaxLineBytes) {
      emit(partial_);
      partial_.clear();
    }
  }
}

void LineSplitter::Finish(const Emit& emit) {
  if (!partial_.empty()) emit(WithoutCarriageReturn(partial_));
  partial_.clear();
}

void TailLines::Add(absl::string_view line, absl::Time now) {
  lines_.emplace_back(line);
  times_.push_back(now);
  if (lines_.size() <= count_) return;
  lines_.pop_front();
  times_.pop_front();
}

std::deque<std::string> TailLines::Since(absl::Time then) const {
  std::deque<std::string> recent;
  for (size_t i = 0; i < lines_.size(); ++i)
    if (times_[i] >= then) recent.push_back(lines_[i]);
  return recent;
}

void TailLines::Add(const OutputPiece& piece, absl::Time now) {
  const bool open = !EndsLine(last_end_);
  const bool ends_only = piece.text.empty() && EndsLine(piece.end);
  if (!open && !piece.text.empty()) Add(piece.text, now);
  if (!open && ends_only) Add("", now);
  if (!open && piece.text.empty() && !ends_only) return;  // nothing to overwrite
  if (open && !ends_only && last_end_ == PieceEnd::kReturn) lines_.back().clear();
  if (open) times_.back() = now;
  if (open && lines_.back().size() < kMaxLineBytes) absl::StrAppend(&lines_.back(), piece.text);
  last_end_ = piece.end;
}

std::string RankPrefix(int32_t rank, int32_t size, bool colour) {
  const std::string number = absl::StrCat(rank);
  const size_t width = absl::StrCat(size > 0 ? size - 1 : 0).size();
  const std::string padding(width > number.size() ? width - number.size() : 0, ' ');
  const std::string text = absl::StrCat("[", padding, number, "] ");
  // Six colours that are readable on dark and light: red means an error, white and black vanish.
  static constexpr int kColours[] = {36, 33, 35, 32, 34, 96};
  constexpr int32_t kNumColours = sizeof(kColours) / sizeof(kColours[0]);
  if (!colour) return text;
  return absl::StrCat("\033[", kColours[rank % kNumColours], "m", text, "\033[0m");
}

}  // namespace coordd
