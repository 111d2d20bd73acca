// What a worker's options mean for its data plane of GPUs.
#pragma once

#include "common/protocol/types.h"
#include "worker/api/worker_options.h"
#include "worker/gpu/plane/device_plane.h"

namespace coordd {

// Looks at the machine's network interfaces and its name.
DevicePlaneOptions DevicePlaneOptionsOf(const WorkerOptions& worker, Generation generation);

}  // namespace coordd
