// Whether buffers are where their tensor says. (io)
#pragma once

#include "absl/status/status.h"
#include "worker/execute/tensor_job.h"
#include "worker/gpu/cuda/device_runtime.h"

namespace coordd {

// INVALID_ARGUMENT: a device that is none, or memory that is not its.
absl::Status CheckBuffers(DeviceRuntime& devices, const TensorJob& job);

}  // namespace coordd
