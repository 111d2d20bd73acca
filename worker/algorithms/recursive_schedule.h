// Allreduce between partners at distances 1, 2, 4, ... Thakur, Rabenseifner and Gropp,
// "Optimization of collective communication operations in MPICH", IJHPCA 2005. PURE.
//
// For N bytes and p ranks, q the largest power of two that is at most p. When p is not a power of
// two, the first 2 (p - q) ranks fold in pairs first: the even one sends everything to the odd one
// and gets the result from it at the end, which costs 2 more steps and N more bytes each way.
#pragma once

#include "common/protocol/types.h"
#include "worker/algorithms/collective_schedule.h"

namespace coordd {

// Everything is exchanged with each partner: log2 q steps, N log2 q bytes. The fewest steps there
// are, for messages whose latency counts. Needs N bytes of kScratch. Partners combine the same two
// operands, the lower ranks' first, so all ranks end with the same bits.
TransferSchedule RecursiveDoublingAllreduce(Rank self, int32_t world_size, int64_t size_bytes,
                                            int64_t element_bytes);

// Reduce-scatter by recursive halving, then allgather by recursive doubling: 2 log2 q steps,
// 2 N (q - 1) / q bytes. Each block is combined on one rank and then copied, so all ranks end with
// the same bits.
TransferSchedule HalvingDoublingAllreduce(Rank self, int32_t world_size, int64_t size_bytes,
                                          int64_t element_bytes);

}  // namespace coordd
