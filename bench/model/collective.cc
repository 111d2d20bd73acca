#include "bench/model/collective.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/algorithms/collective_run.h"
#include "worker/algorithms/pairwise_schedule.h"
#include "worker/algorithms/recursive_schedule.h"
#include "worker/algorithms/ring_schedule.h"
#include "worker/algorithms/slice_exchange.h"
#include "worker/algorithms/tree_schedule.h"

namespace coordd::model {
namespace {

constexpr int64_t kElementBytes = 4;

// A span of nobody's memory: only its size counts.
template <typename Byte>
absl::Span<Byte> OfSize(int64_t bytes) {
  return absl::Span<Byte>(static_cast<Byte*>(nullptr), static_cast<size_t>(bytes));
}

// Blocks of a vector, by rank.
std::vector<int64_t> BlocksOf(int64_t bytes, int32_t nodes) {
  std::vector<int64_t> blocks;
  for (const ByteRange& block : SplitEvenly(bytes, nodes, kElementBytes))
    blocks.push_back(block.size_bytes);
  return blocks;
}

CollectiveArgs ArgsOf(const Collective& collective) {
  CollectiveArgs args;
  args.kind = collective.kind;
  args.dtype = DataType::kFloat32;
  const std::vector<int64_t> blocks = BlocksOf(collective.bytes, collective.nodes);
  const bool splits = collective.kind == CollectiveKind::kReducescatter ||
                      collective.kind == CollectiveKind::kAlltoall;
  if (collective.kind != CollectiveKind::kBroadcast) {
    const bool gathers = collective.kind == CollectiveKind::kAllgather;
    args.input = OfSize<const std::byte>(gathers ? blocks.front() : collective.bytes);
  }
  args.output = OfSize<std::byte>(
      collective.kind == CollectiveKind::kReducescatter ? blocks.front() : collective.bytes);
  if (splits) args.input_block_bytes = blocks;
  if (collective.kind == CollectiveKind::kAllgather || collective.kind == CollectiveKind::kAlltoall)
    args.output_block_bytes = blocks;
  return args;
}

GridOfRanks GridOfRacks(const Collective& collective, const Network& network) {
  if (!collective.labelled || network.racks == 1) return {};
  std::vector<int32_t> rack_of;
  for (int32_t node = 0; node < collective.nodes; ++node)
    rack_of.push_back(node / (collective.nodes / network.racks));
  return GridOf(std::vector<std::vector<int32_t>>{rack_of});
}

// The schedules of one rank's part in `bytes`.
using MakesFor = std::function<TransferSchedule(Rank self, int64_t bytes)>;

class Ways {
 public:
  explicit Ways(const Collective& collective) : of_(collective), args_(ArgsOf(collective)) {}

  void Add(const std::string& name, const MakesFor& make, bool in_slices) {
    ways_.push_back({name, [make, bytes = of_.bytes](Rank self) { return make(self, bytes); }, {}});
    if (!in_slices) return;
    // Slices of the vector, or of each block.
    const bool has_blocks =
        of_.kind == CollectiveKind::kAllgather || of_.kind == CollectiveKind::kReducescatter;
    const int64_t blocks = has_blocks ? of_.nodes : 1;
    const int64_t cut = (of_.bytes + blocks - 1) / blocks;
    // Equal ones, where the last is smaller than the others.
    const int64_t most = SliceExchange::SliceBytesFor(args_);
    const int64_t slices = (cut - cut / 64 + most - 1) / most;
    if (slices < 2) return;
    const int64_t unit = kElementBytes * (has_blocks ? 1 : of_.nodes);
    const int64_t slice = std::max<int64_t>(cut / slices / unit, 1) * unit;
    ways_.push_back({absl::StrCat("slices of ", name),
                     [make, bytes = slice * blocks](Rank self) { return make(self, bytes); },
                     {slices, SliceExchange::kInFlight}});
  }
  std::vector<Way> Take() { return std::move(ways_); }

 private:
  const Collective of_;
  const CollectiveArgs args_;
  std::vector<Way> ways_;
};

std::vector<ByteRange> Ranges(int64_t bytes, int32_t nodes) {
  return SplitEvenly(bytes, nodes, kElementBytes);
}

void AddAllreduces(Ways& ways, int32_t nodes, const std::shared_ptr<const GridOfRanks>& grid) {
  ways.Add(
      "recursive_doubling",
      [nodes](Rank self, int64_t bytes) {
        return RecursiveDoublingAllreduce(self, nodes, bytes, kElementBytes);
      },
      false);
  ways.Add(
      "halving_doubling",
      [nodes](Rank self, int64_t bytes) {
        return HalvingDoublingAllreduce(self, nodes, bytes, kElementBytes);
      },
      true);
  ways.Add(
      "ring",
      [nodes](Rank self, int64_t bytes) {
        return RingAllreduce(self, nodes, bytes, kElementBytes);
      },
      true);
  if (grid->empty()) return;
  ways.Add(
      "dimensions",
      [grid](Rank self, int64_t bytes) {
        return DimensionAllreduce(self, *grid, bytes, kElementBytes);
      },
      true);
}

// As SliceExchange has them.
TransferSchedule SliceScheduleOf(CollectiveKind kind, Rank self, int32_t nodes,
                                 const GridOfRanks& grid, int64_t bytes, int64_t whole_bytes) {
  switch (kind) {
    case CollectiveKind::kAllgather:
      return MakeSliceAllgather(self, &grid, Ranges(bytes, nodes));
    case CollectiveKind::kReducescatter:
      return MakeSliceReducescatter(self, &grid, Ranges(bytes, nodes));
    case CollectiveKind::kBroadcast:
      return MakeSliceBroadcast(self, nodes, Rank{0}, &grid, bytes, whole_bytes);
    default:
      return MakeSliceSchedule(self, nodes, &grid, bytes, kElementBytes);
  }
}

}  // namespace

std::vector<Way> WaysOf(const Collective& collective, const Network& network) {
  const int32_t nodes = collective.nodes;
  auto grid = std::make_shared<const GridOfRanks>(GridOfRacks(collective, network));
  // Where no racks are known, the prime factors of the number of nodes are a grid as good as any.
  const std::vector<int32_t> factors = PrimeFactorsOf(nodes);
  if (grid->empty() && factors.size() > 1)
    grid = std::make_shared<const GridOfRanks>(GridOfRanks{factors, {}});
  Ways ways(collective);
  switch (collective.kind) {
    case CollectiveKind::kAllreduce:
      AddAllreduces(ways, nodes, grid);
      break;
    case CollectiveKind::kAllgather:
      ways.Add(
          "ring",
          [nodes](Rank self, int64_t bytes) { return RingAllgather(self, Ranges(bytes, nodes)); },
          false);
      if (grid->empty()) break;
      ways.Add(
          "dimensions",
          [nodes, grid](Rank self, int64_t bytes) {
            return DimensionAllgather(self, *grid, Ranges(bytes, nodes));
          },
          true);
      break;
    case CollectiveKind::kReducescatter:
      ways.Add(
          "pairwise",
          [nodes](Rank self, int64_t bytes) {
            return PairwiseReduceScatter(self, Ranges(bytes, nodes));
          },
          false);
      if (grid->empty()) break;
      ways.Add(
          "dimensions",
          [nodes, grid](Rank self, int64_t bytes) {
            return DimensionReducescatter(self, *grid, Ranges(bytes, nodes));
          },
          true);
      break;
    case CollectiveKind::kBroadcast:
      ways.Add(
          "binomial_tree",
          [nodes](Rank self, int64_t bytes) {
            return BinomialBroadcast(self, nodes, Rank{0}, bytes);
          },
          true);
      for (const int32_t arity : {1, 2}) {
        ways.Add(
            arity == 1 ? "chain" : "tree of two",
            [nodes, arity](Rank self, int64_t bytes) {
              return ArityBroadcast(self, nodes, Rank{0}, arity, bytes);
            },
            true);
      }
      break;
    default:
      ways.Add(
          "pairwise",
          [nodes](Rank self, int64_t bytes) {
            return PairwiseAlltoall(self, Ranges(bytes, nodes), Ranges(bytes, nodes));
          },
          false);
  }
  return ways.Take();
}

Way ChoiceOf(const Collective& collective, const Network& network) {
  const int32_t nodes = collective.nodes;
  // As MakeHostGroup says.
  auto grid = std::make_shared<const GridOfRanks>(GridOfRacks(collective, network));
  if (grid->empty()) grid = std::make_shared<const GridOfRanks>(GridOfFactors(nodes));
  const Algorithm algorithm =
      ChooseAlgorithm(collective.kind, collective.bytes, nodes, PlacesApart(*grid, nodes));
  if (algorithm != Algorithm::kSlices) {
    const std::string name(Name(algorithm));
    return {name,
            [algorithm, collective, grid](Rank self) {
              return MakeSchedule(algorithm, ArgsOf(collective), self, collective.nodes, &*grid);
            },
            {}};
  }
  Ways ways(collective);
  ways.Add(
      "",
      [kind = collective.kind, nodes, grid, whole = collective.bytes](Rank self, int64_t bytes) {
        return SliceScheduleOf(kind, self, nodes, *grid, bytes, whole);
      },
      true);
  Way choice = ways.Take().back();
  const bool in_grid = HasDimensions(collective.kind) && !grid->empty();
  choice.name = std::string(in_grid ? NameInGrid(algorithm) : Name(algorithm));
  return choice;
}

int64_t EvenBytes(int64_t bytes, int32_t nodes) {
  const int64_t unit = nodes * kElementBytes;
  const int64_t even = (bytes + unit - 1) / unit * unit;
  return even - bytes <= bytes / 16 ? even : bytes;
}

absl::StatusOr<double> Microseconds(const Way& way, const Collective& collective,
                                    const Network& network) {
  const int32_t rack_size = collective.nodes / network.racks;
  const Symmetry symmetry = SymmetryOf(way.make, collective.nodes, rack_size);
  COORDD_ASSIGN_OR_RETURN(const MessageTable table, TableOf(way.make, symmetry, collective.nodes,
                                                            rack_size, RunOptions().segment_bytes));
  return MicrosecondsOf(table, network, collective.nodes, way.pieces);
}

}  // namespace coordd::model
