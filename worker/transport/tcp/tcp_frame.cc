#include "worker/transport/tcp/tcp_frame.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr size_t kTagAt = 3, kSizeAt = 8, kEndAt = 16;

void Put(EncodedHeader& to, size_t at, size_t bytes, uint64_t value) {
  for (size_t i = 0; i < bytes; ++i) to[at + i] = static_cast<std::byte>(value >> (8 * i));
}

uint64_t Get(const EncodedHeader& from, size_t at, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(from[at + i]) << (8 * i);
  return value;
}

bool IsAllowed(const FrameHeader& header) {
  switch (header.kind) {
    case FrameKind::kWelcome:
    case FrameKind::kYield:
      return header.tag == 0 && header.size_bytes == 0;
    case FrameKind::kTaken:
      return header.tag == 0;
    case FrameKind::kSmall:
    case FrameKind::kAsk:
      return header.size_bytes <= kSmallBytesMax;
    case FrameKind::kReady:
    case FrameKind::kData:
    case FrameKind::kOtherSize:
    case FrameKind::kRefused:
      return header.size_bytes <= kMessageBytesMax;
  }
  return false;
}

}  // namespace

EncodedHeader Encode(const FrameHeader& header) {
  EncodedHeader bytes = {};
  bytes[0] = static_cast<std::byte>(header.kind);
  Put(bytes, kTagAt, FrameHeader::kTagBits / 8, header.tag);
  Put(bytes, kSizeAt, sizeof(uint64_t), header.size_bytes);
  return bytes;
}

absl::StatusOr<FrameHeader> ParseHeader(const EncodedHeader& bytes) {
  FrameHeader header;
  header.kind = static_cast<FrameKind>(bytes[0]);
  header.tag = Get(bytes, kTagAt, FrameHeader::kTagBits / 8);
  header.size_bytes = Get(bytes, kSizeAt, sizeof(uint64_t));
  const auto is_zero = [](std::byte filling) { return filling == std::byte{0}; };
  if (!std::all_of(bytes.begin() + 1, bytes.begin() + kTagAt, is_zero) ||
      !std::all_of(bytes.begin() + kEndAt, bytes.end(), is_zero)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of kind ", static_cast<int>(bytes[0]),
                     " whose filling is not zeros: its bytes are not what a rank sends"));
  }
  if (IsAllowed(header)) return header;
  return absl::InvalidArgumentError(absl::StrCat("a frame of kind ", static_cast<int>(bytes[0]),
                                                 " with tag ", header.tag, " and size ",
                                                 header.size_bytes, ", which no rank sends"));
}

}  // namespace coordd
