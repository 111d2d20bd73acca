#include "worker/algorithms/algorithm_table.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "worker/algorithms/pairwise_schedule.h"
#include "worker/algorithms/recursive_schedule.h"
#include "worker/algorithms/ring_schedule.h"
#include "worker/algorithms/rooted_schedule.h"
#include "worker/algorithms/tree_schedule.h"

namespace coordd {
namespace {

constexpr int64_t kAnySize = std::numeric_limits<int64_t>::max();

// Where a row holds: some of the Places.
constexpr uint32_t Of(Places places) { return 1u << static_cast<uint32_t>(places); }
constexpr uint32_t kManyOnNodes = Of(Places::kEvenNodes) | Of(Places::kUnevenNodes);
constexpr uint32_t kNodes = kManyOnNodes | Of(Places::kThinNodes);
constexpr uint32_t kEvenOnly = Of(Places::kEvenNodes);
constexpr uint32_t kGridOnly = Of(Places::kApartInGrid);
constexpr uint32_t kAnyGrid = kGridOnly | Of(Places::kApartInLongGrid);
constexpr uint32_t kApartOnly = Of(Places::kApart) | kAnyGrid;
constexpr uint32_t kEverywhere = ~0u;

struct Row {
  CollectiveKind kind;
  int64_t max_bytes;  // the row holds up to here
  Algorithm algorithm;
  uint32_t places = kEverywhere;
  int32_t min_ranks = 0;
  int32_t max_ranks = std::numeric_limits<int32_t>::max();
};

// What a leader gives to its node in one post.
constexpr int64_t kLeadersMax = int64_t{4} << 10;

// What is not worth cutting among nodes of one rank.
constexpr int64_t kWholeMax = int64_t{256} << 10;

// What is not worth cutting of a broadcast.
constexpr int64_t kWholeBroadcastMax = int64_t{128} << 10;

// On thin nodes the one rank of each that would carry what is large is slower than all together.
// The bounds between the allreduces are where, between processes of one machine, the steps saved no
// longer pay for the bytes sent twice; they are not sharp. Two ranks send none twice, and what one
// exchange saves of two is worth more than reducing all on both while it lasts. An allgather and a
// reducescatter by dimensions have no more steps, messages or bytes of a rank than the ring and the
// pairwise one, so in a grid they go so at any size. A large broadcast in slices is sent once or
// twice by each node, along a binomial tree log2 p times by its root. docs/design/between_nodes.md
// has the figures.
constexpr Row kTable[] = {
    {CollectiveKind::kAllreduce, kLeadersMax, Algorithm::kLeaders, kNodes},
    {CollectiveKind::kAllreduce, int64_t{16} << 10, Algorithm::kRecursiveDoubling},
    {CollectiveKind::kAllreduce, kWholeMax, Algorithm::kRecursiveDoubling, kApartOnly, 2, 2},
    {CollectiveKind::kAllreduce, kAnySize, Algorithm::kHierarchical, kManyOnNodes},
    {CollectiveKind::kAllreduce, kWholeMax, Algorithm::kDimensions, kGridOnly},
    {CollectiveKind::kAllreduce, kWholeMax, Algorithm::kHalvingDoubling, kApartOnly},
    {CollectiveKind::kAllreduce, kAnySize, Algorithm::kSlices, kApartOnly},
    {CollectiveKind::kAllreduce, int64_t{1} << 20, Algorithm::kHalvingDoubling},
    {CollectiveKind::kAllreduce, kAnySize, Algorithm::kRing},
    {CollectiveKind::kAllgather, kLeadersMax, Algorithm::kLeaders, kNodes},
    {CollectiveKind::kAllgather, kAnySize, Algorithm::kHierarchical, kEvenOnly},
    {CollectiveKind::kAllgather, kWholeMax, Algorithm::kDimensions, kAnyGrid},
    {CollectiveKind::kAllgather, kAnySize, Algorithm::kSlices, kAnyGrid},
    {CollectiveKind::kAllgather, kAnySize, Algorithm::kRing},
    {CollectiveKind::kBroadcast, kLeadersMax, Algorithm::kLeaders, kNodes},
    {CollectiveKind::kBroadcast, int64_t{16} << 10, Algorithm::kBinomialTree},
    {CollectiveKind::kBroadcast, kAnySize, Algorithm::kHierarchical, kManyOnNodes},
    {CollectiveKind::kBroadcast, kWholeBroadcastMax, Algorithm::kBinomialTree},
    {CollectiveKind::kBroadcast, kAnySize, Algorithm::kSlices, kApartOnly, 3},
    {CollectiveKind::kBroadcast, kAnySize, Algorithm::kBinomialTree},
    {CollectiveKind::kReducescatter, kAnySize, Algorithm::kHierarchical, kEvenOnly},
    {CollectiveKind::kReducescatter, kWholeMax, Algorithm::kDimensions, kAnyGrid},
    {CollectiveKind::kReducescatter, kAnySize, Algorithm::kSlices, kAnyGrid},
    {CollectiveKind::kReducescatter, kAnySize, Algorithm::kPairwise},
    {CollectiveKind::kAlltoall, kAnySize, Algorithm::kHierarchical, kNodes},
    {CollectiveKind::kAlltoall, kAnySize, Algorithm::kPairwise},
    {CollectiveKind::kBarrier, kAnySize, Algorithm::kLeaders, kNodes},
    {CollectiveKind::kBarrier, kAnySize, Algorithm::kDissemination},
    {CollectiveKind::kReduce, kLeadersMax, Algorithm::kLeaders, kNodes},
    {CollectiveKind::kReduce, kAnySize, Algorithm::kHierarchical, kNodes},
    {CollectiveKind::kReduce, int64_t{16} << 10, Algorithm::kBinomialTree},
    {CollectiveKind::kReduce, kAnySize, Algorithm::kScatterGather},
    {CollectiveKind::kGather, kAnySize, Algorithm::kDirect},
};

// One rank: the result is the input.
TransferSchedule LocalCopy(const CollectiveArgs& args) {
  TransferSchedule schedule;
  AlgorithmStep copy;
  const int64_t size_bytes = static_cast<int64_t>(args.input.size());
  AddLocal(copy, {BufferRole::kOutput, 0, size_bytes}, {BufferRole::kInput, 0, size_bytes});
  AddStep(schedule, std::move(copy));
  return schedule;
}

TransferSchedule MakeAllreduce(Algorithm algorithm, const CollectiveArgs& args, Rank self,
                               int32_t world_size, const GridOfRanks* grid) {
  const int64_t size_bytes = static_cast<int64_t>(args.input.size());
  const int64_t element_bytes = SizeOf(args.dtype);
  switch (algorithm) {
    case Algorithm::kDimensions:
      COORDD_CHECK(grid != nullptr);
      return DimensionAllreduce(self, *grid, size_bytes, element_bytes);
    case Algorithm::kRecursiveDoubling:
      return RecursiveDoublingAllreduce(self, world_size, size_bytes, element_bytes);
    case Algorithm::kHalvingDoubling:
      return HalvingDoublingAllreduce(self, world_size, size_bytes, element_bytes);
    default:
      COORDD_CHECK(algorithm == Algorithm::kRing);
      return RingAllreduce(self, world_size, size_bytes, element_bytes);
  }
}

TransferSchedule MakeReduce(Algorithm algorithm, const CollectiveArgs& args, Rank self,
                            int32_t world_size) {
  const int64_t size_bytes = static_cast<int64_t>(args.input.size());
  if (algorithm == Algorithm::kBinomialTree)
    return BinomialReduce(self, world_size, args.root, size_bytes);
  COORDD_CHECK(algorithm == Algorithm::kScatterGather);
  return ScatterGatherReduce(self, args.root,
                             SplitEvenly(size_bytes, world_size, SizeOf(args.dtype)));
}

}  // namespace

absl::string_view Name(Algorithm algorithm) {
  constexpr std::array<absl::string_view, 13> kNames = {
      "local_copy", "recursive_doubling", "halving_doubling", "ring",
      "pairwise",   "binomial_tree",      "dissemination",    "scatter_gather",
      "direct",     "hierarchical",       "slices",           "leaders",
      "dimensions"};
  return kNames.at(static_cast<size_t>(algorithm));
}

absl::string_view NameInGrid(Algorithm algorithm) {
  if (algorithm == Algorithm::kSlices) return "slices_by_dimensions";
  if (algorithm == Algorithm::kHierarchical) return "hierarchical_by_dimensions";
  return Name(algorithm);
}

std::optional<HostAlgorithm> HostAlgorithmFromName(absl::string_view name) {
  if (name == "auto") return HostAlgorithm::kAuto;
  if (name == "flat") return HostAlgorithm::kFlat;
  if (name == "hierarchical") return HostAlgorithm::kHierarchical;
  return std::nullopt;
}

// Small ones are halved and doubled otherwise: a fold, where there is one, is two steps.
Places PlacesApart(const GridOfRanks& grid, int32_t nodes) {
  const auto number = static_cast<uint32_t>(nodes);
  const int32_t fold = std::has_single_bit(number) ? 0 : 2;
  const bool is_quick =
      DimensionSteps(grid) <= 2 * (static_cast<int32_t>(std::bit_width(number)) - 1) + fold;
  if (grid.empty()) return Places::kApart;
  return is_quick ? Places::kApartInGrid : Places::kApartInLongGrid;
}

Algorithm ChooseAlgorithm(CollectiveKind kind, int64_t size_bytes, int32_t world_size,
                          Places places) {
  if (world_size == 1) return Algorithm::kLocalCopy;
  for (const Row& row : kTable) {
    if ((row.places & Of(places)) == 0 || world_size < row.min_ranks || world_size > row.max_ranks)
      continue;
    if (row.kind == kind && size_bytes <= row.max_bytes) return row.algorithm;
  }
  COORDD_CHECK(false);  // the table has a row for every kind
}

bool HasDimensions(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kAllgather ||
         kind == CollectiveKind::kReducescatter;
}

bool HasHierarchy(CollectiveKind kind, bool even) {
  const Places places = even ? Places::kEvenNodes : Places::kUnevenNodes;
  return std::any_of(std::begin(kTable), std::end(kTable), [&](const Row& row) {
    return row.kind == kind && (row.places & Of(places)) != 0 &&
           row.algorithm == Algorithm::kHierarchical;
  });
}

// The steps of a ring, of which there are two for each node, count more with many nodes than the
// bytes that others send twice where their number is no power of two. In a grid there are few, and
// the uplinks count.
TransferSchedule MakeSliceSchedule(Rank self, int32_t nodes, const GridOfRanks* grid,
                                   int64_t size_bytes, int64_t element_bytes) {
  if (grid != nullptr && !grid->empty())
    return DimensionAllreduce(self, *grid, size_bytes, element_bytes);
  constexpr int32_t kNodesOfARing = 8;
  if (nodes > kNodesOfARing || std::has_single_bit(static_cast<uint32_t>(nodes)))
    return HalvingDoublingAllreduce(self, nodes, size_bytes, element_bytes);
  return RingAllreduce(self, nodes, size_bytes, element_bytes);
}

TransferSchedule MakeSliceAllgather(Rank self, const GridOfRanks* grid,
                                    absl::Span<const ByteRange> blocks) {
  const bool has_grid = grid != nullptr && !grid->empty();
  return has_grid ? DimensionAllgather(self, *grid, blocks) : RingAllgather(self, blocks);
}

TransferSchedule MakeSliceReducescatter(Rank self, const GridOfRanks* grid,
                                        absl::Span<const ByteRange> blocks) {
  const bool has_grid = grid != nullptr && !grid->empty();
  return has_grid ? DimensionReducescatter(self, *grid, blocks)
                  : PairwiseReduceScatter(self, blocks);
}

// Of nodes of one rank: where they stand, by their labels. Empty: in the order of their numbers.
absl::Span<const Rank> OrderOf(const GridOfRanks* grid, int32_t ranks) {
  if (grid == nullptr || std::ssize(grid->ranks) != ranks) return {};
  return grid->ranks;
}

// What is not worth cutting is worth no tree that is deeper than the binomial one. In a chain a
// slice has as many steps as there are nodes, and each byte is sent once; with more nodes than
// slices the steps count more than the bytes that a tree of two sends twice.
TransferSchedule MakeSliceBroadcast(Rank self, int32_t nodes, Rank root, const GridOfRanks* grid,
                                    int64_t size_bytes, int64_t whole_bytes) {
  const absl::Span<const Rank> order = OrderOf(grid, nodes);
  if (nodes == 2 || whole_bytes <= kWholeBroadcastMax)
    return BinomialBroadcast(self, nodes, root, size_bytes, order);
  const int32_t arity = size_bytes == 0 || nodes <= whole_bytes / size_bytes ? 1 : 2;
  return ArityBroadcast(self, nodes, root, arity, size_bytes, order);
}

// Beyond a few nodes the bytes that a tree has into its root, N for each of its steps, count more
// than the messages of the other way.
TransferSchedule MakeSliceReduce(Rank self, int32_t nodes, Rank root, int64_t size_bytes,
                                 int64_t element_bytes) {
  constexpr int32_t kNodesOfATree = 4;
  if (nodes <= kNodesOfATree) return BinomialReduce(self, nodes, root, size_bytes);
  return ScatterGatherReduce(self, root, SplitEvenly(size_bytes, nodes, element_bytes));
}

TransferSchedule MakeSchedule(Algorithm algorithm, const CollectiveArgs& args, Rank self,
                              int32_t world_size, const GridOfRanks* grid) {
  if (algorithm == Algorithm::kLocalCopy) return LocalCopy(args);
  switch (args.kind) {
    case CollectiveKind::kAllreduce:
      return MakeAllreduce(algorithm, args, self, world_size, grid);
    case CollectiveKind::kAllgather:
      if (algorithm != Algorithm::kDimensions) grid = nullptr;
      return MakeSliceAllgather(self, grid, RangesOf(args.output_block_bytes));
    case CollectiveKind::kBroadcast:
      return BinomialBroadcast(self, world_size, args.root,
                               static_cast<int64_t>(args.output.size()), OrderOf(grid, world_size));
    case CollectiveKind::kReducescatter:
      if (algorithm != Algorithm::kDimensions) grid = nullptr;
      return MakeSliceReducescatter(self, grid, RangesOf(args.input_block_bytes));
    case CollectiveKind::kAlltoall:
      return PairwiseAlltoall(self, RangesOf(args.input_block_bytes),
                              RangesOf(args.output_block_bytes));
    case CollectiveKind::kBarrier:
      return DisseminationBarrier(self, world_size);
    case CollectiveKind::kReduce:
      return MakeReduce(algorithm, args, self, world_size);
    case CollectiveKind::kGather:
      return DirectGather(self, args.root, static_cast<int64_t>(args.input.size()),
                          RangesOf(args.output_block_bytes));
    case CollectiveKind::kJoin:
    case CollectiveKind::kSend:
    case CollectiveKind::kReceive:
      break;
  }
  COORDD_CHECK(false);  // ValidateArgs refuses every other kind
}

}  // namespace coordd
