// How each collective is said in NCCL's calls. (io)
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker/gpu/nccl/nccl_communicator.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

// Enqueues the collective on the stream: one call, or one group of them. It may be Pending
// afterwards. `scratch`: four bytes of device memory, for a barrier. REQUIRES: `args` as
// ValidateArgs and NcclReductionOf accept them. Statuses: as NcclCommunicator::Call.
//
// The same calls in the same order on every rank, whatever is empty: where there is nothing to move
// for anybody, nobody calls; an empty block of a pair is left out by both.
absl::Status EnqueueCollective(const NcclFunctions& nccl, NcclCommunicator& communicator,
                               const CollectiveArgs& args, std::byte* scratch, CudaStream stream);

// A buffer that the ranks of a communicator reduce together and gather again: a slice for each,
// and what is left behind these, which the last rank has too.
struct NcclRanges {
  absl::Span<const std::byte> input;  // all slices; the same memory as the output, or none of it
  absl::Span<std::byte> output;
  int64_t slice_bytes = 0;
  DataType dtype = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
};
// One call, or one group of two: this rank's slice of the output is reduced over all inputs.
absl::Status EnqueueReduceToSlices(const NcclFunctions& nccl, NcclCommunicator& communicator,
                                   const NcclRanges& slices, CudaStream stream);
// Enqueues the gather of slices: every rank has every slice of the output behind it.
absl::Status EnqueueGatherOfSlices(const NcclFunctions& nccl, NcclCommunicator& communicator,
                                   const NcclRanges& slices, CudaStream stream);

}  // namespace coordd
