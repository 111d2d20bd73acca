// The head of a frame of HTTP/2 (RFC 9113, 4.1 and 6), for whoever looks at what passes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace coordd {

inline constexpr size_t kFrameHeadBytes = 9;
// What a client says before its first frame.
inline constexpr size_t kPrefaceBytes = 24;

enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kResetStream = 3,
  kSettings = 4,
  kPing = 6,
  kGoaway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};

struct FrameHead {
  size_t size = 0;  // bytes of the payload behind it
  FrameType type = FrameType::kData;
  uint8_t flags = 0;
  uint32_t stream = 0;
};

// The number in `size` bytes, at most 4.
inline uint32_t BigEndianAt(const char* bytes, size_t size) {
  uint32_t number = 0;
  for (size_t i = 0; i < size; ++i) number = number << 8 | static_cast<uint8_t>(bytes[i]);
  return number;
}

// `bytes`: kFrameHeadBytes.
inline FrameHead FrameHeadAt(const char* bytes) {
  return {.size = BigEndianAt(bytes, 3),
          .type = static_cast<FrameType>(bytes[3]),
          .flags = static_cast<uint8_t>(bytes[4]),
          .stream = BigEndianAt(bytes + 5, 4) & 0x7fffffffu};
}

}  // namespace coordd
