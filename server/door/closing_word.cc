#include "server/door/closing_word.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"

namespace coordd {
namespace {

// RFC 9113, 7.
constexpr absl::string_view kErrors[] = {"NO_ERROR",
                                         "PROTOCOL_ERROR",
                                         "INTERNAL_ERROR",
                                         "FLOW_CONTROL_ERROR",
                                         "SETTINGS_TIMEOUT",
                                         "STREAM_CLOSED",
                                         "FRAME_SIZE_ERROR",
                                         "REFUSED_STREAM",
                                         "CANCEL",
                                         "COMPRESSION_ERROR",
                                         "CONNECT_ERROR",
                                         "ENHANCE_YOUR_CALM",
                                         "INADEQUATE_SECURITY",
                                         "HTTP_1_1_REQUIRED"};

}  // namespace

void ClosingWord::Take(absl::string_view bytes,
                       absl::FunctionRef<void(const FrameHead&)> on_frame) {
  while (!bytes.empty()) {
    if (skipping_ > 0) {
      const size_t skipped = std::min(skipping_, bytes.size());
      skipping_ -= skipped;
      bytes.remove_prefix(skipped);
      continue;
    }
    const size_t taken = std::min(wanted_ - kept_size_, bytes.size());
    std::memcpy(kept_.data() + kept_size_, bytes.data(), taken);
    kept_size_ += taken;
    bytes.remove_prefix(taken);
    if (kept_size_ < wanted_) return;
    if (in_goaway_) {
      TakeGoaway();
    } else {
      TakeHead(on_frame);
    }
  }
}

void ClosingWord::TakeHead(absl::FunctionRef<void(const FrameHead&)> on_frame) {
  const FrameHead head = FrameHeadAt(kept_.data());
  on_frame(head);
  in_goaway_ = head.type == FrameType::kGoaway && head.size >= kGoawayBytes;
  if (in_goaway_) {
    wanted_ = std::min(kFrameHeadBytes + head.size, kept_.size());
    return;
  }
  kept_size_ = 0;
  skipping_ = head.size;
}

void ClosingWord::TakeGoaway() {
  const size_t payload = FrameHeadAt(kept_.data()).size;
  const uint32_t error = BigEndianAt(kept_.data() + kFrameHeadBytes + 4, 4);
  said_ = true;
  if (error != 0) {
    complaint_ =
        error < std::size(kErrors) ? std::string(kErrors[error]) : absl::StrCat("error ", error);
    const size_t begin = kFrameHeadBytes + kGoawayBytes;
    const absl::string_view word(kept_.data() + begin, wanted_ - begin);
    if (!word.empty()) absl::StrAppend(&complaint_, " (", PrintableText(word), ")");
  }
  skipping_ = kFrameHeadBytes + payload - wanted_;
  in_goaway_ = false;
  kept_size_ = 0;
  wanted_ = kFrameHeadBytes;
}

}  // namespace coordd
