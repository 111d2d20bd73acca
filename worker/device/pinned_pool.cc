#include "worker/device/pinned_pool.h"

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
    std::vector<DeviceMemory>& free = free_[size];
    if (!free.empty()) {
      DeviceMemory memory = std::move(free.back());
      free.pop_back();
      kept_bytes_ -= size;
      return memory;
    }
  }
  return DeviceMemory::AllocatePinned(device_, device, size);
}

void PinnedPool::Return(DeviceMemory memory) {
  const int64_t size = static_cast<int64_t>(memory.span().size());
  MutexLock lock(&mu_);
  if (kept_bytes_ + size > kKeptBytesMax) return;  // freed with the argument
  kept_bytes_ += size;
  free_[size].push_back(std::move(memory));
}

}  // namespace coordd
