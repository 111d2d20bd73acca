// How a message lies in an active message of UCX (docs/PROTOCOL.md). PURE, but for UCX's types.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/interfaces/transport.h"
#include "worker/transport/ucx/message_inbox.h"
#include "worker/transport/ucx/ucx_api.h"

namespace coordd {

// Numbers of active messages: label and bytes apart, or one behind the other in what UCX calls the
// payload; a hello, with the sender's rank (32 bits) for a header, is no message (UcxPeers::Greet).
inline constexpr unsigned kLabelApart = 1, kLabelInFront = 2, kHello = 3;

// Over TCP a message is read where the kernel has put it, in a buffer of UCX's that starts at a
// cache line, behind 5 bytes of uct_tcp_am_hdr_t and 8 of ucp_am_hdr_t. What is worth it is sent
// with so much in front of it that it starts at the next line, and filled up to a line, so that the
// message behind it, which is often read by the same call of the kernel's, does so, too. (AMD's
// Zen 4 copies many times slower where the target lies 1 to 31 bytes behind the source modulo the
// page, which is what a target at the start of a line would be.)
inline constexpr size_t kFrontBytes = 64 - 5 - 8;
inline constexpr size_t kInFrontBytesMin = size_t{8} << 10;

inline uint64_t UcxTag(Rank sender, Tag tag) {
  return static_cast<uint64_t>(ToInt(sender)) << MessageLabel::kTagBits | tag.Encode();
}

// The payload of a message with its label in front, valid as long as this and the bytes are, which
// are only read.
class UcxPayload {
 public:
  void Set(const MessageLabel& label, absl::Span<const std::byte> bytes);
  const ucp_dt_iov_t* parts() const { return parts_.data(); }
  size_t count() const { return count_; }

 private:
  std::array<std::byte, kFrontBytes> front_ = {};
  std::array<ucp_dt_iov_t, 3> parts_ = {};
  size_t count_ = 0;
};

// What has arrived.
struct UcxArrival {
  MessageLabel label;
  void* data = nullptr;  // of a rendezvous: what gets it
  size_t size_bytes = 0;
  bool is_rendezvous = false;
};
// The arrival of a message whose label is apart. A peer that speaks otherwise than this is a broken
// invariant, and the end of the process.
UcxArrival WithLabelApart(const void* header, size_t header_bytes, void* data, size_t size_bytes,
                          const ucp_am_recv_param_t& param);
UcxArrival WithLabelInFront(void* data, size_t size_bytes);

}  // namespace coordd
