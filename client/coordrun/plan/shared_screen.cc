#include "client/coordrun/plan/shared_screen.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr char kErase[] = "\r\033[K";  // to the end of the line
constexpr int32_t kOurselves = -1;
// Of what stands on the line that is open: a bar that is drawn again has no more.
constexpr size_t kShownMax = 4096;

}  // namespace

// Of one who overwrites, or of one who ends a line: that one stands above the bar, which is drawn
// again below it.
std::string SharedScreen::MakeRoom(bool for_bar) {
  if (open_ == Open::kNothing) return "";
  if (open_ == Open::kBar && terminal_) return kErase;
  if (open_ == Open::kBar && for_bar) return at_start_ ? "" : "\r";
  cut_off_.insert(source_);
  open_ = Open::kNothing;
  return "\n";
}

std::string SharedScreen::Add(int32_t source, absl::string_view prefix, const OutputPiece& piece) {
  const bool own = open_ != Open::kNothing && source_ == source;
  if (piece.text.empty()) return own ? EndOwn(piece.end) : EndOther(source, prefix, piece.end);
  const bool ends = EndsLine(piece.end);
  const bool returns = piece.end == PieceEnd::kReturn;
  const bool is_bar = (bars_.count(source) > 0 || returns) && !ends;
  if (returns) bars_.insert(source);
  if (ends) bars_.erase(source);
  cut_off_.erase(source);
  covered_.erase(source);
  const bool goes_on = own && !at_start_;
  std::string out = own ? "" : MakeRoom(is_bar);
  const std::string text = absl::StrCat(goes_on ? "" : prefix, piece.text);
  absl::StrAppend(&out, text, ends ? "\n" : returns ? "\r" : "");
  if (!own && open_ == Open::kBar) {
    if (ends) return absl::StrCat(out, shown_, at_start_ ? "\r" : "");
    covered_[source_] = shown_;
  }
  if (!goes_on) shown_.clear();
  shown_.append(text, 0, kShownMax - std::min(kShownMax, shown_.size()));
  open_ = ends ? Open::kNothing : is_bar ? Open::kBar : Open::kText;
  source_ = source;
  at_start_ = returns;
  return out;
}

// The source whose line is open goes back to its start, or ends it.
std::string SharedScreen::EndOwn(PieceEnd end) {
  if (EndsLine(end)) {
    open_ = Open::kNothing;
    bars_.erase(source_);
    return "\n";
  }
  if (end != PieceEnd::kReturn) return "";
  open_ = Open::kBar;
  bars_.insert(source_);
  return std::exchange(at_start_, true) ? "" : "\r";
}

std::string SharedScreen::EndOther(int32_t source, absl::string_view prefix, PieceEnd end) {
  if (end == PieceEnd::kReturn) bars_.insert(source);
  if (!EndsLine(end)) return "";
  bars_.erase(source);
  if (cut_off_.erase(source) > 0) return "";  // that has happened
  // The last state of its bar stays.
  const auto covered = covered_.find(source);
  const std::string line = covered != covered_.end() ? covered->second : std::string(prefix);
  covered_.erase(source);
  const std::string room = MakeRoom(/*for_bar=*/false);
  const bool again = open_ == Open::kBar;
  return absl::StrCat(room, line, "\n", again ? shown_ : "", again && at_start_ ? "\r" : "");
}

std::string SharedScreen::AddLine(absl::string_view line) {
  return Add(kOurselves, "", {line, PieceEnd::kNewline});
}

std::string SharedScreen::Finish() {
  if (std::exchange(open_, Open::kNothing) == Open::kNothing) return "";
  cut_off_.insert(source_);
  return "\n";
}

}  // namespace coordd
