#include "worker/api/device_memory.h"

#include "common/base/environment.h"
#include "common/machine/build_info.h"
#include "worker/gpu/nccl/program_allocations.h"

namespace coordd {
namespace {

absl::StatusOr<std::shared_ptr<NcclRuntime>> OpenNccl() {
  if (!IsBuiltIn("CUDA") || !IsBuiltIn("NCCL"))
    return absl::UnimplementedError("this build of coordd has no NCCL");
  return NcclRuntime::Open(ReadEnvironment());
}

// Never destroyed: a program's allocator frees what it has until the process ends.
ProgramAllocations& Allocations() {
  static ProgramAllocations* const allocations = new ProgramAllocations(OpenNccl);
  return *allocations;
}

}  // namespace

absl::StatusOr<void*> AllocateDeviceMemory(int32_t device, int64_t size_bytes) {
  return Allocations().Allocate(device, size_bytes);
}

absl::Status FreeDeviceMemory(const void* memory) { return Allocations().Free(memory); }

int64_t DeviceMemorySize(const void* memory) { return Allocations().SizeOf(memory); }

}  // namespace coordd
