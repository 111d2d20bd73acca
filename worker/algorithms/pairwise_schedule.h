// Collectives in which, at step s, each rank sends to the rank s after it and receives from the
// rank s before it, directly. Thakur, Rabenseifner and Gropp, "Optimization of collective
// communication operations in MPICH", IJHPCA 2005 (pairwise exchange). PURE.
#pragma once

#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/algorithms/collective_schedule.h"

namespace coordd {

// Eight of the p - 1 exchanges at a time in each step; each block travels once, so a rank sends its
// input without its own block.
// `input_blocks` by destination, `output_blocks` by source.
TransferSchedule PairwiseAlltoall(Rank self, absl::Span<const ByteRange> input_blocks,
                                  absl::Span<const ByteRange> output_blocks);

// p - 1 steps, N (p - 1) / p bytes sent: as the ring, but a block is combined where it ends up, so
// no partial results need memory. Between nodes the ring sends less; the hierarchical schedules
// will decide there. kInput: all blocks; kOutput: block `self`.
TransferSchedule PairwiseReduceScatter(Rank self, absl::Span<const ByteRange> blocks);

}  // namespace coordd
