// Which algorithm carries out a collective: one table, read in order. PURE.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "common/protocol/types.h"
#include "worker/algorithms/collective_schedule.h"
#include "worker/algorithms/dimension_schedule.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

enum class Algorithm : uint8_t {
  kLocalCopy,  // one rank
  kRecursiveDoubling,
  kHalvingDoubling,
  kRing,
  kPairwise,
  kBinomialTree,
  kDissemination,
  kScatterGather,
  kDirect,
  kHierarchical,  // reduced and gathered on mapped memory inside a node (node_run.h)
  kSlices,        // cut into slices, several of which are under way (slice_exchange.h)
  kLeaders,       // by posts inside a node, and one rank of each between them (leader_run.h)
  kDimensions,    // inside the racks, then between them (dimension_schedule.h)
};
absl::string_view Name(Algorithm algorithm);  // "ring": for traces and tests
// Of what moves slices between nodes that lie in a grid: "slices_by_dimensions".
absl::string_view NameInGrid(Algorithm algorithm);

// Which algorithms a rank would use between nodes, for measurements. kHierarchical: wherever it is
// possible.
enum class HostAlgorithm : uint8_t { kAuto, kFlat, kHierarchical };
// Reads "auto", "flat" or "hierarchical"; nullopt: something else.
std::optional<HostAlgorithm> HostAlgorithmFromName(absl::string_view name);

// Where the ranks of a group are.
enum class Places : uint8_t {
  kAny,
  kEvenNodes,  // on several nodes, as many on each, more than one, with each other's memory mapped
  // The same, with different numbers, on some nodes perhaps one.
  kUnevenNodes,  // two or more on a node, on average
  kThinNodes,    // fewer
  kApart,        // each on a node of its own
  // The same, and the nodes lie in racks, or whatever the labels of their topology are, so that
  // there is a grid of them (dimension_schedule.h) whose allreduces have no more steps than others.
  kApartInGrid,
  kApartInLongGrid,  // the same, with more steps
};
inline bool AreInGrid(Places places) {
  return places == Places::kApartInGrid || places == Places::kApartInLongGrid;
}
inline bool AreApart(Places places) { return places == Places::kApart || AreInGrid(places); }

// Of so many nodes of one rank.
Places PlacesApart(const GridOfRanks& grid, int32_t nodes);

// The same on all ranks, because they agree on the arguments: `size_bytes` is the size of the whole
// vector, of an allgather's output, of a reducescatter's input, and does not count for kinds with
// one algorithm.
Algorithm ChooseAlgorithm(CollectiveKind kind, int64_t size_bytes, int32_t world_size,
                          Places places = Places::kAny);
// Whether it goes through the dimensions of a grid of nodes, where there is one: between nodes in
// slices (slice_exchange.h), or as it is.
bool HasDimensions(CollectiveKind kind);
// Whether there is one on mapped memory (kHierarchical) for ranks of several nodes, `even` or not.
bool HasHierarchy(CollectiveKind kind, bool even);

// The schedule of an allreduce of a slice among one rank of each node, in one buffer. `grid`: of
// the nodes; nullptr or empty: there is none.
TransferSchedule MakeSliceSchedule(Rank self, int32_t nodes, const GridOfRanks* grid,
                                   int64_t size_bytes, int64_t element_bytes);

// The schedules of an allgather and of a reducescatter of a slice of each node's block, as those of
// ring_schedule.h and pairwise_schedule.h have their buffers.
TransferSchedule MakeSliceAllgather(Rank self, const GridOfRanks* grid,
                                    absl::Span<const ByteRange> blocks);
TransferSchedule MakeSliceReducescatter(Rank self, const GridOfRanks* grid,
                                        absl::Span<const ByteRange> blocks);

// The schedule of a broadcast of a slice, among one rank of each node, of a value of `whole_bytes`,
// which all of them know. In a grid of labels the ranks of a rack stand side by side in its tree.
TransferSchedule MakeSliceBroadcast(Rank self, int32_t nodes, Rank root, const GridOfRanks* grid,
                                    int64_t size_bytes, int64_t whole_bytes);

// The schedule of a reduce of a slice among one rank of each node.
TransferSchedule MakeSliceReduce(Rank self, int32_t nodes, Rank root, int64_t size_bytes,
                                 int64_t element_bytes);

// The schedule of `self` for valid `args` (collective_args.h). REQUIRES: `algorithm` is one for
// args.kind, and none of kHierarchical, kSlices and kLeaders; there is a `grid` for kDimensions.
TransferSchedule MakeSchedule(Algorithm algorithm, const CollectiveArgs& args, Rank self,
                              int32_t world_size, const GridOfRanks* grid = nullptr);

}  // namespace coordd
