// How each collective is said in NCCL's calls. (io)
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker/collective_backend.h"
#include "worker/nccl/nccl_communicator.h"

namespace coordd {

// Enqueues the collective on the stream: one call, or one group of them. It may be Pending
// afterwards. `scratch`: four bytes of device memory, for a barrier. REQUIRES: `args` as
// ValidateArgs and NcclReductionOf accept them. Statuses: as NcclCommunicator::Call.
//
// The same calls in the same order on every rank, whatever is empty: where there is nothing to move
// for anybody, nobody calls; an empty block of a pair is left out by both.
absl::Status EnqueueCollective(const NcclFunctions& nccl, NcclCommunicator& communicator,
                               const CollectiveArgs& args, std::byte* scratch, CudaStream stream);

}  // namespace coordd
