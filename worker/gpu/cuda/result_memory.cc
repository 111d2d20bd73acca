#include "worker/gpu/cuda/result_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/status_macros.h"

namespace coordd {
namespace {

constexpr int64_t kBytesMin = 512;  // what a driver gives at least

int64_t SizeOf(const DeviceMemory& memory) { return static_cast<int64_t>(memory.span().size()); }

}  // namespace

// A result, as long as somebody refers to it.
struct ResultMemory::Held {
  Held(std::shared_ptr<ResultMemory> of_in, DeviceMemory memory_in, int32_t device_in)
      : of(std::move(of_in)), memory(std::move(memory_in)), device(device_in) {}

  const std::shared_ptr<ResultMemory> of;
  DeviceMemory memory;
  const int32_t device;
  Mutex mu;
  std::set<CudaStream> readers ABSL_GUARDED_BY(mu);
  std::vector<DeviceEvent> ends ABSL_GUARDED_BY(mu);  // of all of them, once it was released
};

struct ResultMemory::Deleter {
  std::shared_ptr<Held> held;
  void operator()(std::byte*) const { held->of->TakeBack(*held); }
};

// Eight sizes from one power of two to the next: at most an eighth is not used.
int64_t ResultMemory::ClassOf(int64_t size_bytes) {
  const auto size = static_cast<uint64_t>(std::max(size_bytes, kBytesMin));
  const uint64_t step = std::bit_floor(size) / 8;
  return static_cast<int64_t>((size + step - 1) / step * step);
}

bool ResultMemory::IsOver(const Idle& idle) {
  return std::all_of(idle.ends.begin(), idle.ends.end(), [](const DeviceEvent& end) {
    const absl::StatusOr<bool> happened = end.Happened();
    return happened.ok() && *happened;
  });
}

ResultMemory::ByBytes::node_type ResultMemory::TakeIdle(int64_t size, int32_t device) {
  MutexLock lock(&mu_);
  auto it = idle_.lower_bound(size);
  while (it != idle_.end() && it->first <= 2 * size && it->second.device != device) ++it;
  if (it == idle_.end() || it->first > 2 * size) return {};
  idle_bytes_ -= it->first;
  return idle_.extract(it);
}

absl::StatusOr<std::shared_ptr<std::byte[]>> ResultMemory::Take(int32_t device,
                                                                int64_t size_bytes) {
  const int64_t size = ClassOf(size_bytes);
  std::vector<ByBytes::node_type> busy;
  ByBytes::node_type found = TakeIdle(size, device);
  // Readers are asked for without the lock.
  while (!found.empty() && !IsOver(found.mapped())) {
    busy.push_back(std::move(found));
    found = TakeIdle(size, device);
  }
  {
    MutexLock lock(&mu_);
    for (auto& node : busy) {
      idle_bytes_ += node.key();
      idle_.insert(std::move(node));
    }
  }
  if (!found.empty()) return HandOut(std::move(found.mapped().memory), device);
  COORDD_ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Allocate(*runtime_, device, size));
  return HandOut(std::move(memory), device);
}

std::shared_ptr<std::byte[]> ResultMemory::HandOut(DeviceMemory memory, int32_t device) {
  {
    MutexLock lock(&mu_);
    used_bytes_ += SizeOf(memory);
    most_used_ = std::max(most_used_, used_bytes_);
  }
  std::byte* const address = memory.data();
  return std::shared_ptr<std::byte[]>(
      address, Deleter{std::make_shared<Held>(shared_from_this(), std::move(memory), device)});
}

void ResultMemory::TakeBack(Held& held) {
  Idle idle{std::move(held.memory), held.device, {}};
  {
    MutexLock lock(&held.mu);
    idle.ends.swap(held.ends);
  }
  const int64_t size = SizeOf(idle.memory);
  ByBytes too_much;  // ends outside of the lock
  MutexLock lock(&mu_);
  used_bytes_ -= size;
  if (closed_ || (idle.ends.empty() && frees_ == Frees::kAtOnce)) return;  // freed with `idle`
  if (idle.ends.empty()) {
    lost_bytes_ += size;
    lost_.push_back(std::move(idle.memory));
    return;
  }
  idle_bytes_ += size;
  idle_.emplace(size, std::move(idle));
  if (frees_ == Frees::kWhenTold || !FullLocked()) return;
  too_much.swap(idle_);
  idle_bytes_ = 0;
}

void ResultMemory::CountBatch() {
  MutexLock lock(&mu_);
  if (++batches_ % kBatches != 0) return;
  most_used_before_ = std::exchange(most_used_, used_bytes_);
}

bool ResultMemory::FullLocked() const {
  return lost_bytes_ > idle_bytes_max_ ||
         idle_bytes_ > idle_bytes_max_ + 2 * std::max(most_used_, most_used_before_);
}

bool ResultMemory::full() const {
  MutexLock lock(&mu_);
  return FullLocked();
}

int64_t ResultMemory::bytes() const {
  MutexLock lock(&mu_);
  return used_bytes_ + idle_bytes_ + lost_bytes_;
}

void ResultMemory::Free() {
  ByBytes idle;
  std::vector<DeviceMemory> lost;
  MutexLock lock(&mu_);
  idle.swap(idle_);
  lost.swap(lost_);
  idle_bytes_ = lost_bytes_ = 0;
}

void ResultMemory::Close() {
  {
    MutexLock lock(&mu_);
    closed_ = true;
  }
  Free();
}

ResultMemory::Held* ResultMemory::HeldOf(const std::shared_ptr<std::byte[]>& result) {
  const Deleter* const deleter = std::get_deleter<Deleter>(result);
  return deleter == nullptr ? nullptr : deleter->held.get();
}

void ResultMemory::NoteReader(const std::shared_ptr<std::byte[]>& result, CudaStream reader) {
  Held* const held = HeldOf(result);
  if (held == nullptr) return;
  MutexLock lock(&held->mu);
  held->readers.insert(reader);
}

void ResultMemory::NoteReleased(const std::shared_ptr<std::byte[]>& result) {
  Held* const held = HeldOf(result);
  if (held == nullptr) return;
  DeviceRuntime& runtime = *held->of->runtime_;
  MutexLock lock(&held->mu);
  std::vector<DeviceEvent> ends;
  for (CudaStream reader : held->readers) {
    {
      const auto scope = DeviceScope::Enter(runtime, held->device);
      if (!scope.ok() || runtime.IsCaptured(reader)) return;
    }
    absl::StatusOr<DeviceEvent> end = DeviceEvent::Create(runtime, held->device);
    if (!end.ok() || !end->Record(reader).ok()) return;
    ends.push_back(*std::move(end));
  }
  held->ends = std::move(ends);
}

}  // namespace coordd
