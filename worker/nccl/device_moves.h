// Packing and unpacking on a stream. (io)
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/device/device_handles.h"
#include "worker/device/device_kernels.h"
#include "worker/nccl/stream_memory.h"
#include "worker/tensor_move.h"

namespace coordd {

// Enqueues the moves, which do not depend on each other: one launch for all copies, one for all
// that are scaled alike. What is filled comes from `identities`, which stays until the stream is
// through. INVALID_ARGUMENT: an average (FitsNccl says no to those).
absl::Status EnqueueMoves(absl::Span<const TensorMove> moves, DeviceRuntime& device, int32_t index,
                          DeviceKernels& kernels, CudaStream stream, IdentityMemory& identities);

}  // namespace coordd
