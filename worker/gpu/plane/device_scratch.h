// The memory of a device that batches share since they run one behind the other. (io)
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "worker/gpu/nccl/nccl_backend.h"
#include "worker/gpu/nccl/stream_memory.h"

namespace coordd {

// One thread at a time, but for bytes().
class DeviceScratch {
 public:
  explicit DeviceScratch(int64_t buffer_bytes) : buffer_bytes_(buffer_bytes) {}

  // To fuse a batch of so many bytes in. What an allgather collects can be larger than what each
  // rank gives, and than any buffer. RESOURCE_EXHAUSTED.
  absl::StatusOr<absl::Span<std::byte>> For(int64_t bytes, DeviceRuntime& device,
                                            NcclBackend& backend) {
    if (bytes == 0) return absl::Span<std::byte>();
    if (bytes <= buffer_bytes_) {
      if (buffer_.empty()) {
        COORDD_ASSIGN_OR_RETURN(buffer_, backend.AllocateFusionBuffer(buffer_bytes_));
        Count();
      }
      return buffer_;
    }
    COORDD_ASSIGN_OR_RETURN(const absl::Span<std::byte> large,
                            large_.Take(device, backend.device(), bytes));
    Count();
    return large;
  }
  // A place for what nobody reads. RESOURCE_EXHAUSTED.
  absl::StatusOr<std::byte*> Sink(int64_t bytes, DeviceRuntime& device, NcclBackend& backend) {
    COORDD_ASSIGN_OR_RETURN(const absl::Span<std::byte> place,
                            sink_.Take(device, backend.device(), bytes));
    return place.data();
  }
  IdentityMemory& identities() { return identities_; }
  // In which batches are fused. Thread-safe.
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  void Count() {
    bytes_.store(static_cast<int64_t>(buffer_.size()) + large_.size_bytes(),
                 std::memory_order_relaxed);
  }

  const int64_t buffer_bytes_;
  std::atomic<int64_t> bytes_ = 0;
  absl::Span<std::byte> buffer_;
  StreamMemory large_;  // for what is larger than that buffer
  StreamMemory sink_;
  IdentityMemory identities_;
};

}  // namespace coordd
