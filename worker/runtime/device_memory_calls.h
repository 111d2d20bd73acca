// How a rank has NCCL know memory of its program.
#pragma once

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/api/worker.h"
#include "worker/execute/work.h"
#include "worker/gpu/plane/device_plane.h"

namespace coordd {

// Submits markers (DeviceRegistrations) until one is launched, and waits for it: as
// Worker::RegisterDeviceMemory.
absl::Status RegisterWithNccl(
    DevicePlane& devices, const DeviceRange& range, absl::Time deadline,
    absl::FunctionRef<absl::StatusOr<std::shared_ptr<Work>>(Submission)> submit);

}  // namespace coordd
