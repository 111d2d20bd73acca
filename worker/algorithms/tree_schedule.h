// Collectives over trees. PURE.
#pragma once

#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/algorithms/collective_schedule.h"

namespace coordd {

// In both trees the ranks of a subtree stand side by side in `order`, which goes round from the
// root on; empty: that of their numbers. So where the ranks of each rack stand together, little
// crosses between racks.

// Binomial tree from `root` (Thakur, Rabenseifner and Gropp, IJHPCA 2005): ceil(log2 p) steps on
// the longest path, N bytes on each of its edges; the largest subtree is served first. kOutput
// holds the value on the root and gets it elsewhere.
TransferSchedule BinomialBroadcast(Rank self, int32_t world_size, Rank root, int64_t size_bytes,
                                   absl::Span<const Rank> order = {});

// A tree in which each rank but the last ones has `arity` children: 1 is a chain. Of a value in
// slices (slice_exchange.h), several of which are under way, nobody sends a byte more than `arity`
// times, the root neither, while a binomial tree's root sends each log2 p times. For N bytes in s
// slices, by alpha and beta of a message: (s + p - 2) (alpha + N beta / s) in a chain, and where
// slices are few and ranks many, 2 s N beta / s + log2 p (alpha + 2 N beta / s) in a tree of two.
TransferSchedule ArityBroadcast(Rank self, int32_t world_size, Rank root, int32_t arity,
                                int64_t size_bytes, absl::Span<const Rank> order = {});

// Dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization",
// IJPP 1988): ceil(log2 p) steps, one empty message per step and rank. In step k a rank signals the
// one 2^k after it and waits for the one 2^k before it.
TransferSchedule DisseminationBarrier(Rank self, int32_t world_size);

}  // namespace coordd
