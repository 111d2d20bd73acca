#include "worker/gpu/nccl/program_allocations.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "worker/gpu/nccl/known_memory.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {

absl::StatusOr<void*> ProgramAllocations::Allocate(int32_t device, int64_t size_bytes) {
  if (size_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("size_bytes is ", size_bytes, ", expected 1 or more"));
  }
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<NcclRuntime> runtime, Runtime());
  const int32_t count = runtime->device->device_count();
  if (device < 0 || device >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("device ", device, " is none of this process's, which are 0 to ", count - 1));
  }
  if (!NcclMemory::Available(runtime->nccl.functions)) {
    return absl::UnimplementedError(absl::StrCat("NCCL is ", NcclVersionText(runtime->nccl.version),
                                                 ", expected 2.19 or later"));
  }
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<NcclMemory> memory,
                          NcclMemory::Allocate(std::move(runtime), device, size_bytes));
  void* const begin = memory->span().data();
  MutexLock lock(&mu_);
  memory_[begin] = std::move(memory);
  return begin;
}

absl::Status ProgramAllocations::Free(const void* memory) {
  // Of communicators that end, which let go by themselves (NcclWatchdogOptions::abort_limit).
  constexpr absl::Duration kLimit = absl::Seconds(10);
  Clock& clock = Clock::Real();
  const absl::Time by = clock.Now() + kLimit;
  IdleWait idle(1, 1);
  std::shared_ptr<NcclMemory> freed;  // behind the lock: it may wait for the device
  while (true) {
    {
      MutexLock lock(&mu_);
      const auto found = memory_.find(memory);
      if (found == memory_.end()) {
        return absl::InvalidArgumentError(
            "memory that coordd_alloc_device has not given, or that is freed already");
      }
      const auto holder = KnownMemory::OfProcess().HolderOf(found->second->span());
      if (!holder.has_value()) {
        freed = std::move(found->second);
        memory_.erase(found);
        return absl::OkStatus();
      }
      if (!holder->ending || clock.Now() >= by) {
        return absl::FailedPreconditionError(absl::StrCat(
            "NCCL knows the memory, which is registered in process set ", ToInt(holder->group),
            holder->ending ? ", whose communicators are still ending" : "",
            ": coordd_unregister_device has to come first"));
      }
    }
    idle.Wait();
  }
}

int64_t ProgramAllocations::SizeOf(const void* memory) {
  MutexLock lock(&mu_);
  const auto found = memory_.find(memory);
  return found == memory_.end() ? 0 : static_cast<int64_t>(found->second->span().size());
}

absl::StatusOr<std::shared_ptr<NcclRuntime>> ProgramAllocations::Runtime() {
  MutexLock lock(&mu_);
  if (!runtime_.has_value()) runtime_ = open_();
  return *runtime_;
}

}  // namespace coordd
