// Packing and unpacking on a stream. (io)
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/execute/tensor_move.h"
#include "worker/gpu/cuda/device_handles.h"
#include "worker/gpu/cuda/device_kernels.h"
#include "worker/gpu/nccl/stream_memory.h"

namespace coordd {

// Enqueues the moves, which do not depend on each other: one launch for all copies, one for all
// that are scaled alike. What is filled comes from `identities`, which stays until the stream is
// through. INVALID_ARGUMENT: an average (FitsNccl says no to those).
absl::Status EnqueueMoves(absl::Span<const TensorMove> moves, DeviceRuntime& device, int32_t index,
                          DeviceKernels& kernels, CudaStream stream, IdentityMemory& identities);

}  // namespace coordd
