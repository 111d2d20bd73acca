#include "worker/gpu/nccl/host_waits.h"

#include <new>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/gpu/nccl/nccl_gate.h"

namespace coordd {

absl::StatusOr<size_t> HostWaits::Take() {
  MutexLock lock(&mu_);
  if (!memory_.has_value()) {
    COORDD_ASSIGN_OR_RETURN(
        DeviceMemory memory,
        DeviceMemory::AllocatePinned(*runtime_->device, device_,
                                     static_cast<int64_t>(kWords * sizeof(uint32_t))));
    memory_.emplace(std::move(memory));
    for (size_t i = 0; i < kWords; ++i) {
      words_[i] = new (memory_->data() + i * sizeof(uint32_t)) std::atomic<uint32_t>(kGateOpen);
      free_.push_back(i);
    }
  }
  COORDD_CHECK(!free_.empty());
  const size_t index = free_.back();
  free_.pop_back();
  words_[index]->store(released_ ? kGateOpen : kGateHeld, std::memory_order_release);
  return index;
}

std::atomic<uint32_t>* HostWaits::word(size_t index) {
  MutexLock lock(&mu_);
  return words_[index];
}

void HostWaits::Open(size_t index) { word(index)->store(kGateOpen, std::memory_order_release); }

void HostWaits::Return(size_t index) {
  MutexLock lock(&mu_);
  free_.push_back(index);
}

void HostWaits::Release() {
  MutexLock lock(&mu_);
  released_ = true;
  if (!memory_.has_value()) return;
  for (std::atomic<uint32_t>* word : words_) word->store(kGateOpen, std::memory_order_release);
}

}  // namespace coordd
