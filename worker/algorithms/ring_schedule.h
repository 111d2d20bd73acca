// Collectives in which each rank talks to its two neighbours only. Patarasuk and Yuan, "Bandwidth
// optimal all-reduce algorithms for clusters of workstations", JPDC 2009. PURE.
//
// Costs for N bytes in all and p ranks: the reduce-scatter and the allgather have p - 1 steps, in
// which a rank sends N (p - 1) / p bytes; the allreduce is both: 2 (p - 1) steps, 2 N (p - 1) / p
// bytes, which no algorithm undercuts. Each block is combined along the ring by one rank after the
// other and then copied, so all ranks end with the same bits.
#pragma once

#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/algorithms/collective_schedule.h"

namespace coordd {

// Out of kInput, rank r ends with block r combined over all ranks, at its place in kOutput; other
// places of kOutput hold partial results. `blocks`: one per rank, equal on all ranks. REQUIRES:
// more than one rank.
void AppendRingReduceScatter(Rank self, absl::Span<const ByteRange> blocks,
                             TransferSchedule& schedule);

// Rank r holds block r, `own`; all end with all blocks in kOutput.
void AppendRingAllgather(Rank self, absl::Span<const ByteRange> blocks, BufferRange own,
                         TransferSchedule& schedule);

// kInput and kOutput of `size_bytes`.
TransferSchedule RingAllreduce(Rank self, int32_t world_size, int64_t size_bytes,
                               int64_t element_bytes);

// kInput: this rank's block; kOutput: all blocks.
TransferSchedule RingAllgather(Rank self, absl::Span<const ByteRange> blocks);

}  // namespace coordd
