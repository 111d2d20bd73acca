#include "client/coordrun/process/stream_splitter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/coordrun/process/line_splitter.h"

namespace coordd {

bool EndsLine(PieceEnd end) { return end == PieceEnd::kNewline || end == PieceEnd::kReturnNewline; }

absl::string_view BytesOf(PieceEnd end) {
  switch (end) {
    case PieceEnd::kNewline:
      return "\n";
    case PieceEnd::kReturnNewline:
      return "\r\n";
    case PieceEnd::kReturn:
      return "\r";
    case PieceEnd::kNone:
      break;
  }
  return "";
}

void StreamSplitter::Feed(absl::string_view bytes, absl::Time now, const Emit& emit) {
  while (!bytes.empty()) {
    if (partial_.empty()) first_byte_ = now;
    last_byte_ = now;
    const size_t room = kMaxLineBytes - partial_.size();
    const size_t end = bytes.find_first_of("\r\n");
    const absl::string_view text = bytes.substr(0, std::min(end, room));
    bytes.remove_prefix(text.size());
    PieceEnd ended = PieceEnd::kNone;
    if (end <= room) {  // also if there is no room for more text
      const bool both = absl::ConsumePrefix(&bytes, "\r\n");
      ended = both               ? PieceEnd::kReturnNewline
              : bytes[0] == '\r' ? PieceEnd::kReturn
                                 : PieceEnd::kNewline;
      if (!both) bytes.remove_prefix(1);
    } else if (text.size() < room) {
      absl::StrAppend(&partial_, text);
      return;
    }
    if (partial_.empty()) {
      emit({text, ended});
      continue;
    }
    absl::StrAppend(&partial_, text);
    emit({partial_, ended});
    partial_.clear();
  }
}

void StreamSplitter::Tick(absl::Time now, const Emit& emit) {
  if (now >= NextDeadline()) Finish(emit);
}

void StreamSplitter::Finish(const Emit& emit) {
  if (!partial_.empty()) emit({partial_, PieceEnd::kNone});
  partial_.clear();
}

absl::Time StreamSplitter::NextDeadline() const {
  if (partial_.empty()) return absl::InfiniteFuture();
  return std::min(last_byte_ + kStill, first_byte_ + kOldest);
}

}  // namespace coordd
