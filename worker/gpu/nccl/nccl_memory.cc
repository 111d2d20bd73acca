#include "worker/gpu/nccl/nccl_memory.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {

bool NcclMemory::Available(const NcclFunctions& nccl) {
  return nccl.MemAlloc != nullptr && nccl.MemFree != nullptr;
}

bool NcclMemory::CanBeWindows(const NcclFunctions& nccl) {
  return Available(nccl) && nccl.CommWindowRegister != nullptr &&
         nccl.CommWindowDeregister != nullptr;
}

absl::StatusOr<std::shared_ptr<NcclMemory>> NcclMemory::Allocate(
    std::shared_ptr<NcclRuntime> runtime, int32_t device, int64_t size_bytes) {
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*runtime->device, device));
  const NcclFunctions& nccl = runtime->nccl.functions;
  void* memory = nullptr;
  const NcclResult result = nccl.MemAlloc(&memory, static_cast<size_t>(size_bytes));
  if (result != NcclResult::kSuccess || memory == nullptr) {
    const char* error = nccl.GetErrorString(result);
    return absl::ResourceExhaustedError(absl::StrCat("ncclMemAlloc of ", size_bytes,
                                                     " bytes on device ", device, ": ",
                                                     error != nullptr ? error : "no memory"));
  }
  const absl::Span<std::byte> span(static_cast<std::byte*>(memory),
                                   static_cast<size_t>(size_bytes));
  return std::shared_ptr<NcclMemory>(new NcclMemory(std::move(runtime), device, span));
}

NcclMemory::~NcclMemory() {
  const auto scope = DeviceScope::Enter(*runtime_->device, device_);
  runtime_->nccl.functions.MemFree(span_.data());
}

}  // namespace coordd
