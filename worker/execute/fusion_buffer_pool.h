// The buffers in which an executor fuses batches.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

// Touched by one thread at a time, but for bytes().
//
// Invariant: a buffer is free, or lent to one batch.
class FusionBufferPool {
 public:
  static constexpr int kNone = -1;

  FusionBufferPool(int64_t buffer_bytes, size_t most) : buffer_bytes_(buffer_bytes), most_(most) {}

  int64_t buffer_bytes() const { return buffer_bytes_; }
  // The number of one that is free; kNone: all are lent. They come into being when they are first
  // needed: a program that fuses nothing has none. As CollectiveBackend::AllocateFusionBuffer.
  absl::StatusOr<int> Take(CollectiveBackend& backend) {
    if (free_.empty() && buffers_.size() == most_) return kNone;
    if (free_.empty()) {
      COORDD_ASSIGN_OR_RETURN(absl::Span<std::byte> memory,
                              backend.AllocateFusionBuffer(buffer_bytes_));
      free_.push_back(static_cast<int>(buffers_.size()));
      buffers_.push_back(memory);
      bytes_.fetch_add(buffer_bytes_, std::memory_order_relaxed);
    }
    const int taken = free_.back();
    free_.pop_back();
    return taken;
  }
  void Return(int buffer) { free_.push_back(buffer); }
  absl::Span<std::byte> At(int buffer) const { return buffers_[static_cast<size_t>(buffer)]; }
  // Of all that there are. Thread-safe.
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  const int64_t buffer_bytes_;
  const size_t most_;
  std::vector<absl::Span<std::byte>> buffers_;
  std::vector<int> free_;
  std::atomic<int64_t> bytes_ = 0;
};

}  // namespace coordd
