// What two ranks say to each other over a TCP connection: frames of a header and maybe a payload.
// PURE.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace coordd {

// Messages up to this size, payload alone, are small: they are sent without being asked for, which
// spares a way there where both ranks begin at the same time; the segments of collectives
// (RunOptions) are. Both ends must have the same number; a change of it is a change of
// kTcpProtocol.
inline constexpr size_t kSmallBytesMax = size_t{256} << 10;
// No message is larger.
inline constexpr uint64_t kMessageBytesMax = uint64_t{1} << 46;

enum class FrameKind : uint8_t {
  // The first frame of who was connected to, in answer to the handshake.
  kWelcome = 1,  // this connection is the pair's
  kYield = 2,    // it is not: this rank has begun one of its own, which is to be waited for

  kSmall = 3,  // a small message; its payload follows
  kAsk = 4,    // a small message that stays with its sender until kReady asks for it
  kReady = 5,  // the receiver waits for the next large, or asked, message with this tag
  kData = 6,   // that message; its payload follows
  kTaken = 7,  // size: how much of what was sent unasked is not kept any more, since the beginning
  kOtherSize = 8,  // in the place of kData: the message has this size, and it is not sent
  kRefused = 9,    // in the place of kReady: a message of this size is expected, not what was asked
};

struct FrameHeader {
  // A line of the caches, of which what a header says takes a quarter: a payload behind it stands
  // where AMD's `rep movsb`, by which kernels copy, is not sixteen times as slow (copy_bytes.h).
  static constexpr size_t kBytes = 64;
  static constexpr int kTagBits = 40;

  FrameKind kind = FrameKind::kWelcome;
  uint64_t tag = 0;
  uint64_t size_bytes = 0;

  bool has_payload() const { return kind == FrameKind::kSmall || kind == FrameKind::kData; }
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

using EncodedHeader = std::array<std::byte, FrameHeader::kBytes>;

// Little endian: the kind, two zeros, the tag's five bytes, the size's eight; 48 zeros.
EncodedHeader Encode(const FrameHeader& header);
// INVALID_ARGUMENT: nothing that Encode makes of a frame that may be sent.
absl::StatusOr<FrameHeader> ParseHeader(const EncodedHeader& bytes);

}  // namespace coordd
