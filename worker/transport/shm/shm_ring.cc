#include "worker/transport/shm/shm_ring.h"

#include <algorithm>
#include <bit>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/base/copy_bytes.h"

namespace coordd {
namespace {

// Frames start at multiples of 8 bytes, so that counters and headers stay aligned.
uint64_t FrameBytes(uint64_t payload_bytes) {
  return sizeof(ShmFrame) + (payload_bytes + 7) / 8 * 8;
}

}  // namespace

ShmRingWriter::ShmRingWriter(std::byte* memory, int64_t capacity_bytes)
    : control_(*reinterpret_cast<ShmRingControl*>(memory)),
      data_(memory + sizeof(ShmRingControl)),
      capacity_bytes_(static_cast<uint64_t>(capacity_bytes)) {
  COORDD_CHECK(std::has_single_bit(capacity_bytes_) &&
               reinterpret_cast<uintptr_t>(memory) % alignof(ShmRingControl) == 0);
}

bool ShmRingWriter::HasRoom(int64_t payload_bytes) {
  const uint64_t needed = FrameBytes(static_cast<uint64_t>(payload_bytes));
  if (tail_ + needed - known_head_ <= capacity_bytes_) return true;
  // Acquire: what the reader has read before it moved the head is read; its place may be reused.
  known_head_ = control_.head.load(std::memory_order_acquire);
  return tail_ + needed - known_head_ <= capacity_bytes_;
}

void ShmRingWriter::Write(ShmFrame frame, absl::Span<const std::byte> payload) {
  frame.payload_bytes = static_cast<uint32_t>(payload.size());
  CopyIn(tail_, &frame, sizeof(frame));
  CopyIn(tail_ + sizeof(frame), payload.data(), payload.size());
  tail_ += FrameBytes(payload.size());
  control_.tail.store(tail_, std::memory_order_release);
}

void ShmRingWriter::CopyIn(uint64_t position, const void* bytes, size_t size) {
  if (size == 0) return;
  const uint64_t offset = position & (capacity_bytes_ - 1);
  const size_t first = std::min<size_t>(size, capacity_bytes_ - offset);
  const auto* const from = static_cast<const std::byte*>(bytes);
  CopyBytes(data_ + offset, from, static_cast<int64_t>(first));
  CopyBytes(data_, from + first, static_cast<int64_t>(size - first));
}

ShmRingReader::ShmRingReader(std::byte* memory, int64_t capacity_bytes)
    : control_(*reinterpret_cast<ShmRingControl*>(memory)),
      data_(memory + sizeof(ShmRingControl)),
      capacity_bytes_(static_cast<uint64_t>(capacity_bytes)) {}

absl::StatusOr<std::optional<ShmFrame>> ShmRingReader::Peek() {
  if (known_tail_ == head_) {
    known_tail_ = control_.tail.load(std::memory_order_acquire);
    if (known_tail_ == head_) return std::optional<ShmFrame>();
  }
  // The writer is another process: what it wrote is checked before it is used.
  const uint64_t available = known_tail_ - head_;
  ShmFrame frame;
  if (available >= sizeof(frame) && available <= capacity_bytes_) {
    CopyOut(head_, &frame, sizeof(frame));
    frame_bytes_ = FrameBytes(frame.payload_bytes);
    if (frame_bytes_ <= available) return std::optional<ShmFrame>(frame);
  }
  return absl::InternalError(absl::StrCat("no frame where one is expected in shared memory: ",
                                          available, " bytes in a ring of ", capacity_bytes_));
}

void ShmRingReader::CopyPayload(absl::Span<std::byte> to) const {
  COORDD_CHECK(FrameBytes(to.size()) == frame_bytes_);
  CopyOut(head_ + sizeof(ShmFrame), to.data(), to.size());
}

void ShmRingReader::Pop() {
  head_ += frame_bytes_;
  control_.head.store(head_, std::memory_order_release);
}

void ShmRingReader::AddMatchedBytes(uint64_t bytes) {
  control_.matched_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

void ShmRingReader::CopyOut(uint64_t position, void* bytes, size_t size) const {
  if (size == 0) return;
  const uint64_t offset = position & (capacity_bytes_ - 1);
  const size_t first = std::min<size_t>(size, capacity_bytes_ - offset);
  auto* const to = static_cast<std::byte*>(bytes);
  CopyBytes(to, data_ + offset, static_cast<int64_t>(first));
  CopyBytes(to + first, data_, static_cast<int64_t>(size - first));
}

}  // namespace coordd
