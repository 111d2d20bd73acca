#include "worker/gpu/cuda/pinned_pool.h"

#include <algorithm>
#include <bit>

namespace coordd {
namespace {

constexpr int64_t kSizeMin = 4096;  // a page: what the driver pins at least

}  // namespace

absl::StatusOr<DeviceMemory> PinnedPool::Take(int32_t device, int64_t size_bytes) {
  const int64_t size =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(size_bytes, kSizeMin))));
  {
    MutexLock lock(&mu_);
    const auto fits = free_.lower_bound(size);
    if (fits != free_.end() && (fits->first == size || kept_bytes_ > many_bytes_)) {
      DeviceMemory memory = std::move(fits->second.back());
      fits->second.pop_back();
      kept_bytes_ -= fits->first;
      if (fits->second.empty()) free_.erase(fits);
      return memory;
    }
  }
  absl::StatusOr<DeviceMemory> made = DeviceMemory::AllocatePinned(device_, device, size);
  MutexLock lock(&mu_);
  if (made.ok()) bytes_ += size;
  return made;
}

void PinnedPool::Return(DeviceMemory memory) {
  const int64_t size = static_cast<int64_t>(memory.span().size());
  MutexLock lock(&mu_);
  kept_bytes_ += size;
  free_[size].push_back(std::move(memory));
}

int64_t PinnedPool::bytes() const {
  MutexLock lock(&mu_);
  return bytes_;
}

}  // namespace coordd
