#include "worker/transport/tcp/frame_reader.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/base/copy_bytes.h"

namespace coordd {

void FrameReader::Filled(size_t bytes) {
  COORDD_CHECK(bytes <= payload_left_ && target_ != nullptr);
  target_ += bytes;
  CountPayload(bytes);
}

void FrameReader::CountPayload(size_t bytes) {
  payload_left_ -= bytes;
  if (payload_left_ > 0 || bytes == 0) return;
  target_ = nullptr;
  sink_.EndPayload();
}

absl::Status FrameReader::Take(absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    size_t taken = 0;
    if (payload_left_ > 0) {
      taken = static_cast<size_t>(std::min<uint64_t>(payload_left_, bytes.size()));
      if (target_ != nullptr) {
        CopyBytes(target_, bytes.data(), static_cast<int64_t>(taken));
        target_ += taken;
      }
      CountPayload(taken);
    } else {
      taken = std::min(header_left(), bytes.size());
      std::memcpy(header_.data() + header_bytes_, bytes.data(), taken);
      header_bytes_ += taken;
      if (header_left() == 0) COORDD_RETURN_IF_ERROR(EndHeader());
    }
    bytes.remove_prefix(taken);
  }
  return absl::OkStatus();
}

absl::Status FrameReader::EndHeader() {
  header_bytes_ = 0;
  COORDD_ASSIGN_OR_RETURN(const FrameHeader header, ParseHeader(header_));
  COORDD_ASSIGN_OR_RETURN(std::byte* const target, sink_.BeginFrame(header));
  if (!header.has_payload()) return absl::OkStatus();
  payload_left_ = header.size_bytes;
  target_ = payload_left_ > 0 ? target : nullptr;
  if (payload_left_ == 0) sink_.EndPayload();
  return absl::OkStatus();
}

}  // namespace coordd
