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

// A rank in a ring of some of the ranks.
struct RingPlace {
  int32_t position = 0;  // in the ring, from 0
  Rank previous;
  Rank next;
};
// In the ring of all ranks.
RingPlace PlaceInRing(Rank self, int32_t world_size);

// Out of `operands`, whoever is at position p ends with block p combined over the ring, at its
// place in kOutput; other places of kOutput hold partial results. `blocks`: one per position, equal
// in the whole ring. REQUIRES: more than one rank; `operands` is kInput, or kOutput where it is
// combined in place.
void AppendRingReduceScatter(const RingPlace& self, absl::Span<const ByteRange> blocks,
                             BufferRole operands, TransferSchedule& schedule);

// Position p holds block p, `own`; all end with all blocks in kOutput.
void AppendRingAllgather(const RingPlace& self, absl::Span<const ByteRange> blocks, BufferRange own,
                         TransferSchedule& schedule);

// kInput and kOutput of `size_bytes`.
TransferSchedule RingAllreduce(Rank self, int32_t world_size, int64_t size_bytes,
                               int64_t element_bytes);

// kInput: this rank's block; kOutput: all blocks.
TransferSchedule RingAllgather(Rank self, absl::Span<const ByteRange> blocks);

}  // namespace coordd
