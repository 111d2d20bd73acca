// A queue of frames in shared memory, from one process to another.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace coordd {

// What a frame says; the rules are ShmChannel's. Lies in shared memory: fixed layout.
struct ShmFrame {
  uint64_t kind_and_tag = 0;  // kind (8 bits) << 56 | Tag::Encode()
  uint64_t length = 0;        // of the message, where the kind announces one
  uint32_t stream = 0;        // names a message that comes in pieces
  uint32_t payload_bytes = 0;
};
static_assert(sizeof(ShmFrame) == 24);

// The counters at the start of a ring's memory, each on its own cache line, since different
// processes write them. All zero is an empty ring.
struct ShmRingControl {
  alignas(64) std::atomic<uint64_t> tail;           // bytes ever written: the writer's
  alignas(64) std::atomic<uint64_t> head;           // bytes ever read: the reader's
  alignas(64) std::atomic<uint64_t> matched_bytes;  // the reader's; see ShmChannel
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Memory that a ring of `capacity_bytes` needs.
constexpr int64_t ShmRingBytes(int64_t capacity_bytes) {
  return static_cast<int64_t>(sizeof(ShmRingControl)) + capacity_bytes;
}

// Lamport's single-producer single-consumer ring (TOPLAS 1983). One writing and one reading thread,
// in any processes. `memory` is 64-byte aligned, of ShmRingBytes(capacity); the capacity is a power
// of two. A frame becomes visible as a whole.
class ShmRingWriter {
 public:
  ShmRingWriter(std::byte* memory, int64_t capacity_bytes);

  // Whether a frame with `payload_bytes` fits now.
  bool HasRoom(int64_t payload_bytes);
  // REQUIRES: HasRoom(payload.size()). Fills in payload_bytes.
  void Write(ShmFrame frame, absl::Span<const std::byte> payload);

  // What the reader has said.
  uint64_t matched_bytes() const { return control_.matched_bytes.load(std::memory_order_relaxed); }

 private:
  void CopyIn(uint64_t position, const void* bytes, size_t size);

  ShmRingControl& control_;
  std::byte* const data_;
  const uint64_t capacity_bytes_;
  uint64_t tail_ = 0;
  uint64_t known_head_ = 0;  // the reader's counter when last looked at
};

class ShmRingReader {
 public:
  ShmRingReader(std::byte* memory, int64_t capacity_bytes);

  // The oldest frame, if there is one; it stays until Pop. INTERNAL: the writer has left something
  // that is no frame.
  absl::StatusOr<std::optional<ShmFrame>> Peek();
  // Copies the payload of the frame that Peek has returned. REQUIRES: to.size() is its
  // payload_bytes.
  void CopyPayload(absl::Span<std::byte> to) const;
  void Pop();

  void AddMatchedBytes(uint64_t bytes);

 private:
  void CopyOut(uint64_t position, void* bytes, size_t size) const;

  ShmRingControl& control_;
  const std::byte* const data_;
  const uint64_t capacity_bytes_;
  uint64_t head_ = 0;
  uint64_t known_tail_ = 0;   // the writer's counter when last looked at
  uint64_t frame_bytes_ = 0;  // of the frame that Peek has returned
};

}  // namespace coordd
