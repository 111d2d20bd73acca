// Whether buffers are where their tensor says. (io)
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/execute/tensor_job.h"
#include "worker/gpu/cuda/device_runtime.h"

namespace coordd {

// INVALID_ARGUMENT: a device that is none, or memory that is not its.
absl::Status CheckBuffers(DeviceRuntime& devices, const TensorJob& job);
// The same for memory of the program, of one byte at least.
absl::Status CheckMemory(DeviceRuntime& devices, int32_t device,
                         absl::Span<const std::byte> memory);

}  // namespace coordd
