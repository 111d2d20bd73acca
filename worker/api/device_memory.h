// Memory of GPUs that programs have of coordd. Of a process: no worker is needed, and it outlives
// them.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace coordd {

// What NCCL allocates, for Worker::RegisterDeviceMemory. Thread-safe. UNIMPLEMENTED: this build has
// no NCCL, or NCCL is one before 2.19; NOT_FOUND, UNAVAILABLE: no driver, or no NCCL, and why;
// INVALID_ARGUMENT; RESOURCE_EXHAUSTED.
absl::StatusOr<void*> AllocateDeviceMemory(int32_t device, int64_t size_bytes);
// REQUIRES: nothing on a device uses it. INVALID_ARGUMENT: the former has not given it.
// FAILED_PRECONDITION: a set has it registered; it stays.
absl::Status FreeDeviceMemory(const void* memory);
// Of what AllocateDeviceMemory has given; 0: it has given nothing that begins there.
int64_t DeviceMemorySize(const void* memory);

}  // namespace coordd
