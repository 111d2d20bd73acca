// Collectives whose result is for one rank only. PURE.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/algorithms/collective_schedule.h"

namespace coordd {

// A reduction for the root takes one of two ways (Thakur, Rabenseifner and Gropp, "Optimization of
// collective communication operations in MPICH", IJHPCA 2005), for N bytes and p ranks:
//   binomial tree    ceil(log2 p) steps, but N bytes and N combined in each of the root's
//   scatter, gather  p steps; N (p - 1) / p bytes in and out of each rank, N (p - 1) / p more into
//                    the root; every rank combines its p-th
// So the tree is for what is so small that steps count, and the other for what is so large that
// bytes count; its p - 1 exchanges are pairwise (pairwise_schedule.h), and a rank other than the
// root needs memory for a p-th of the vector only.

// kInput of `size_bytes`; kOutput, of the same size, on the root only.
TransferSchedule BinomialReduce(Rank self, int32_t world_size, Rank root, int64_t size_bytes);

// The reduce by exchanges. kInput and kOutput are as above. `blocks`: one per rank, together the
// vector, equal on all ranks.
TransferSchedule ScatterGatherReduce(Rank self, Rank root, absl::Span<const ByteRange> blocks);

// Each rank sends its block of `own_bytes` to the root, which receives all of them at once: one
// step, N (p - 1) / p bytes into the root, which no algorithm undercuts; a tree would have fewer
// messages there and send most bytes several times. kInput: this rank's block; kOutput: on the root
// all `blocks`, which are empty elsewhere.
TransferSchedule DirectGather(Rank self, Rank root, int64_t own_bytes,
                              absl::Span<const ByteRange> blocks);

}  // namespace coordd
