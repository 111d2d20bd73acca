// Collectives by dimensions of the network, so that a rack's uplink carries what one rank sends
// there for all: an allreduce and a reducescatter inside the racks first, then between the racks of
// an aisle, then between aisles, an allgather and the way back of an allreduce in the opposite
// order. Patarasuk and Yuan's ring (ring_schedule.h) in each dimension; several of them one inside
// the other as in Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus
// interconnects", ICS 2010. PURE.
//
// Costs of an allreduce for N bytes and p = d_1 d_2 ... d_k ranks: 2 ((d_1 - 1) + ... + (d_k - 1))
// steps, where a ring has 2 (p - 1); 2 N (p - 1) / p bytes of each rank, as in a ring, which no
// algorithm undercuts. The uplink of a domain (a rack) with d_1 ranks, of R domains in all, carries
// 2 N (R - 1) / R bytes each way, whatever d_1 is: in a ring of ranks in their order 2 N (p - 1) /
// p, by halving and doubling 2 N d_1 (R - 1) / R. Each element is combined on one rank after the
// other and then copied, so all ranks end with the same bits.
//
// Costs of an allgather and of a reducescatter, with N bytes in all blocks: half of that, (d_1 - 1)
// + ... + (d_k - 1) steps, N (p - 1) / p bytes of each rank, and N (R - 1) / R bytes over the
// uplink each way, where a ring's allgather has N (p - 1) / p and a pairwise reducescatter N d_1
// (R - 1) / R. Blocks stay where they are in input and output, so a step has a message for each: p
// - 1 messages of each rank, as in a ring, without a copy. Where blocks differ, what an allgather
// brings into a rack is each block of the other racks, once, and what a reducescatter takes out of
// one is one sum for each block of the other racks, which is the least there can be. The other way
// is uneven as the blocks are: a ring brings out all but the blocks of the rack behind. A step
// takes as long as its largest lot of blocks; empty ones have no message. Each element of a
// reducescatter is combined on one rank after the other, in an order that depends on nothing but
// the grid and whose block it is in.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/algorithms/collective_schedule.h"

namespace coordd {

// A grid of ranks.
struct GridOfRanks {
  // How many ranks lie side by side in each dimension, from the fastest network to the slowest;
  // each more than one. Empty: there is no grid. They multiply to the number of ranks.
  std::vector<int32_t> sizes;
  // Who is where: along the first dimension, then the second, and so on. Empty: ranks in their
  // order.
  std::vector<Rank> ranks;

  bool empty() const { return sizes.empty(); }
};

// `levels`, from the slowest network to the fastest: by rank, in which domain it is (a rack, an
// aisle; GroupLayout::levels). In each domain of a level lie as many ranks as their greatest common
// divisor says side by side: all of them, where domains are equally large; what is left is the next
// dimension's. A dimension of equal domains is cut into its prime factors, which saves steps and
// costs no byte. No grid: there is but one dimension, since all ranks are in one domain, or each in
// one of its own, or the numbers have no common divisor.
GridOfRanks GridOf(absl::Span<const std::vector<int32_t>> levels);

// Of nodes of which nothing is known: the prime factors of their number, whose steps together are
// fewer than a ring's and, unlike by halving and doubling, enough also where it is no power of two.
// No grid: a prime number, or one with a factor so large that its ring is none of a few steps.
GridOfRanks GridOfFactors(int32_t ranks);

// How many steps its allreduce has.
int32_t DimensionSteps(const GridOfRanks& grid);

// kInput and kOutput of `size_bytes`. REQUIRES: a grid.
TransferSchedule DimensionAllreduce(Rank self, const GridOfRanks& grid, int64_t size_bytes,
                                    int64_t element_bytes);

// kInput: this rank's block; kOutput: all blocks, by rank. REQUIRES: a grid.
TransferSchedule DimensionAllgather(Rank self, const GridOfRanks& grid,
                                    absl::Span<const ByteRange> blocks);

// kInput: all blocks, by rank; kOutput: block `self`; kScratch: at most two thirds of all, half of
// them where the first dimension is of two. REQUIRES: a grid.
TransferSchedule DimensionReducescatter(Rank self, const GridOfRanks& grid,
                                        absl::Span<const ByteRange> blocks);

}  // namespace coordd
