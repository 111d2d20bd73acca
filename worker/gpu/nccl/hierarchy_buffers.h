// The pinned memory of hierarchical allreduces, and what must not end before it.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "worker/gpu/cuda/device_handles.h"
#include "worker/gpu/nccl/hierarchical_allreduce.h"

namespace coordd {

// Touched by one thread.
//
// Invariant: what has been given out stays: to free pinned memory is to wait for the device, and
// the stream may still use what was interrupted.
class HierarchyBuffers {
 public:
  HierarchyBuffers(std::shared_ptr<NcclRuntime> runtime, int32_t device)
      : runtime_(std::move(runtime)), device_(device) {}

  // Slots of at least so many bytes, the same ones as long as they are large enough.
  absl::StatusOr<std::shared_ptr<SliceBuffers>> SlotsOf(int64_t slot_bytes) {
    if (slots_ != nullptr && slots_->slot_bytes() >= slot_bytes) return slots_;
    const auto wanted = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(slot_bytes)));
    COORDD_ASSIGN_OR_RETURN(
        DeviceMemory memory,
        DeviceMemory::AllocatePinned(*runtime_->device, device_,
                                     static_cast<int64_t>(kHierarchySlots) * wanted));
    if (slots_ != nullptr) outgrown_.push_back(std::move(slots_));
    slots_ = std::make_shared<SliceBuffers>(runtime_, std::move(memory));
    return slots_;
  }
  void Keep(std::unique_ptr<HierarchicalAllreduce> interrupted) {
    interrupted_.push_back(std::move(interrupted));
  }

 private:
  const std::shared_ptr<NcclRuntime> runtime_;
  const int32_t device_;
  std::shared_ptr<SliceBuffers> slots_;  // of the largest slice so far
  std::vector<std::shared_ptr<SliceBuffers>> outgrown_;
  std::vector<std::unique_ptr<HierarchicalAllreduce>> interrupted_;
};

}  // namespace coordd
