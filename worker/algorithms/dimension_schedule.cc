#include "worker/algorithms/dimension_schedule.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "worker/algorithms/ring_schedule.h"

namespace coordd {
namespace {

// Where the ranks are if those of each domain are to be neighbours.
std::vector<int32_t> DomainByDomain(absl::Span<const std::vector<int32_t>> levels) {
  std::vector<int32_t> ranks(levels.front().size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::stable_sort(ranks.begin(), ranks.end(), [&](int32_t a, int32_t b) {
    for (const std::vector<int32_t>& domains : levels) {
      const int32_t of_a = domains[static_cast<size_t>(a)];
      const int32_t of_b = domains[static_cast<size_t>(b)];
      if (of_a != of_b) return of_a < of_b;
    }
    return false;
  });
  return ranks;
}

// How many ranks each domain of a level has.
std::vector<int32_t> SizesOf(const std::vector<int32_t>& domains) {
  std::vector<int32_t> sizes;
  for (const int32_t domain : domains) {
    const size_t index = static_cast<size_t>(domain);
    if (index >= sizes.size()) sizes.resize(index + 1);
    ++sizes[index];
  }
  return sizes;
}

std::vector<int32_t> PrimeFactors(int32_t number) {
  std::vector<int32_t> factors;
  for (int32_t factor = 2; factor * factor <= number; ++factor) {
    for (; number % factor == 0; number /= factor) factors.push_back(factor);
  }
  if (number > 1) factors.push_back(number);
  return factors;
}

}  // namespace

GridOfRanks GridOf(absl::Span<const std::vector<int32_t>> levels) {
  if (levels.empty()) return {};
  const int32_t ranks = static_cast<int32_t>(levels.front().size());
  std::vector<int32_t> sizes;
  int32_t placed = 1;  // ranks that lie side by side in the dimensions so far
  bool is_even = true;
  for (size_t level = levels.size(); level-- > 0;) {
    int32_t divisor = 0;
    const std::vector<int32_t> domains = SizesOf(levels[level]);
    for (const int32_t size : domains) divisor = std::gcd(divisor, size);
    is_even = is_even && std::count(domains.begin(), domains.end(), divisor) == std::ssize(domains);
    // A domain that is made of smaller ones has as many ranks as they lie side by side, or some
    // such numbers: `placed` divides it.
    if (divisor > placed) sizes.push_back(divisor / placed);
    placed = divisor;
  }
  if (placed < ranks) sizes.push_back(ranks / placed);
  if (sizes.size() < 2) return {};
  GridOfRanks grid;
  for (const int32_t size : sizes) {
    // Neighbours of a ring are mostly of one domain also where domains are not even. Those at a
    // distance are not.
    const std::vector<int32_t> factors = is_even ? PrimeFactors(size) : std::vector<int32_t>{size};
    grid.sizes.insert(grid.sizes.end(), factors.begin(), factors.end());
  }
  const std::vector<int32_t> order = DomainByDomain(levels);
  if (!std::is_sorted(order.begin(), order.end()))
    for (const int32_t rank : order) grid.ranks.push_back(Rank{rank});
  return grid;
}

GridOfRanks GridOfFactors(int32_t ranks) {
  constexpr int32_t kLargestFactor = 13;
  std::vector<int32_t> factors = PrimeFactors(ranks);
  if (factors.size() < 2 || factors.back() > kLargestFactor) return {};
  return {std::move(factors), {}};
}

namespace {

// The ring of a rank in one dimension, and what it combines there.
struct Dimension {
  RingPlace place;
  std::vector<ByteRange> blocks;
};

int32_t IndexIn(const GridOfRanks& grid, Rank self) {
  if (grid.ranks.empty()) return ToInt(self);
  const auto found = std::find(grid.ranks.begin(), grid.ranks.end(), self);
  COORDD_CHECK(found != grid.ranks.end());
  return static_cast<int32_t>(found - grid.ranks.begin());
}

Rank RankAt(const GridOfRanks& grid, int32_t index) {
  return grid.ranks.empty() ? Rank{index} : grid.ranks[static_cast<size_t>(index)];
}

std::vector<Dimension> DimensionsOf(const GridOfRanks& grid, int32_t index, int64_t size_bytes,
                                    int64_t element_bytes) {
  std::vector<Dimension> dimensions;
  ByteRange whole{0, size_bytes};
  int32_t stride = 1;
  for (const int32_t size : grid.sizes) {
    const int32_t position = index / stride % size;
    const auto at = [&](int32_t other) {
      return RankAt(grid, index + (ToInt(Wrapped(other, size)) - position) * stride);
    };
    Dimension dimension{{position, at(position - 1), at(position + 1)},
                        SplitEvenly(whole.size_bytes, size, element_bytes)};
    for (ByteRange& block : dimension.blocks) block.offset_bytes += whole.offset_bytes;
    whole = dimension.blocks[static_cast<size_t>(position)];
    stride *= size;
    dimensions.push_back(std::move(dimension));
  }
  return dimensions;
}

}  // namespace

int32_t DimensionSteps(const GridOfRanks& grid) {
  int32_t steps = 0;
  for (const int32_t size : grid.sizes) steps += 2 * (size - 1);
  return steps;
}

TransferSchedule DimensionAllreduce(Rank self, const GridOfRanks& grid, int64_t size_bytes,
                                    int64_t element_bytes) {
  COORDD_CHECK(!grid.empty());
  std::vector<Dimension> dimensions =
      DimensionsOf(grid, IndexIn(grid, self), size_bytes, element_bytes);
  TransferSchedule schedule;
  BufferRole operands = BufferRole::kInput;
  for (const Dimension& dimension : dimensions) {
    AppendRingReduceScatter(dimension.place, dimension.blocks, operands, schedule);
    operands = BufferRole::kOutput;
  }
  std::reverse(dimensions.begin(), dimensions.end());
  for (const Dimension& dimension : dimensions) {
    const ByteRange own = dimension.blocks[static_cast<size_t>(dimension.place.position)];
    AppendRingAllgather(dimension.place, dimension.blocks, RangeIn(BufferRole::kOutput, own),
                        schedule);
  }
  return schedule;
}

namespace {

// The ring of a rank in one dimension, and whose blocks go together there: by position, in the
// order of the grid.
struct BlockRing {
  RingPlace place;
  std::vector<std::vector<Rank>> owners;

  const std::vector<Rank>& OwnersAt(int32_t position) const {
    return owners[static_cast<size_t>(ToInt(Wrapped(position, size())))];
  }
  int32_t size() const { return static_cast<int32_t>(owners.size()); }
};

// A block is carried, in each dimension, by the ranks that have its owner's place in the dimensions
// up to this one.
std::vector<BlockRing> BlockRingsOf(const GridOfRanks& grid, Rank self, int32_t ranks) {
  const int32_t index = IndexIn(grid, self);
  std::vector<BlockRing> rings;
  int32_t stride = 1;
  for (const int32_t size : grid.sizes) {
    const int32_t position = index / stride % size;
    const auto index_at = [&](int32_t other) {
      return index + (ToInt(Wrapped(other, size)) - position) * stride;
    };
    BlockRing ring{
        {position, RankAt(grid, index_at(position - 1)), RankAt(grid, index_at(position + 1))}, {}};
    for (int32_t other = 0; other < size; ++other) {
      std::vector<Rank>& owners = ring.owners.emplace_back();
      for (int32_t owner = index_at(other) % (stride * size); owner < ranks; owner += stride * size)
        owners.push_back(RankAt(grid, owner));
    }
    stride *= size;
    rings.push_back(std::move(ring));
  }
  COORDD_CHECK(stride == ranks);
  return rings;
}

// Where a rank has what it has combined of each block.
class Partials {
 public:
  explicit Partials(absl::Span<const ByteRange> blocks) {
    for (const ByteRange& block : blocks) at_.push_back(RangeIn(BufferRole::kInput, block));
  }
  BufferRange& of(Rank owner) { return at_[static_cast<size_t>(ToInt(owner))]; }
  int64_t SizeOf(const std::vector<Rank>& owners) {
    int64_t size_bytes = 0;
    for (const Rank owner : owners) size_bytes += of(owner).size_bytes;
    return size_bytes;
  }

 private:
  std::vector<BufferRange> at_;
};

// A lot of blocks in the first dimension, and the one that is sent meanwhile, have a room each, in
// turns. In later dimensions they are combined where they are.
class PartialRooms {
 public:
  // Steps of the first dimension write all lots but the one that is sent first.
  PartialRooms(const BlockRing& first, Partials& partials) : steps_(first.size() - 1) {
    for (int32_t step = 0; step < steps_; ++step) {
      const int64_t lot_bytes = partials.SizeOf(first.OwnersAt(first.place.position - step - 2));
      room_bytes_ =
          std::max(room_bytes_, (lot_bytes + kRoomAlignment - 1) / kRoomAlignment * kRoomAlignment);
    }
  }
  int64_t scratch_bytes() const { return room_bytes_ * std::min(steps_, 2); }
  int64_t Begin(int32_t step) const { return step % 2 * room_bytes_; }

 private:
  static constexpr int64_t kRoomAlignment = 64;
  const int32_t steps_;
  int64_t room_bytes_ = 0;
};

}  // namespace

TransferSchedule DimensionAllgather(Rank self, const GridOfRanks& grid,
                                    absl::Span<const ByteRange> blocks) {
  COORDD_CHECK(!grid.empty());
  std::vector<BlockRing> rings = BlockRingsOf(grid, self, static_cast<int32_t>(blocks.size()));
  std::reverse(rings.begin(), rings.end());
  const ByteRange own = BlockOf(blocks, self);
  const BufferRange input{BufferRole::kInput, 0, own.size_bytes};
  TransferSchedule schedule;
  for (const BlockRing& ring : rings) {
    const auto& [position, previous, next] = ring.place;
    for (int32_t s = 0; s < ring.size() - 1; ++s) {
      AlgorithmStep step;
      for (const Rank owner : ring.OwnersAt(position - s)) {
        AddSend(step, next,
                owner == self ? input : RangeIn(BufferRole::kOutput, BlockOf(blocks, owner)));
      }
      for (const Rank owner : ring.OwnersAt(position - s - 1))
        AddReceive(step, previous, RangeIn(BufferRole::kOutput, BlockOf(blocks, owner)));
      AddStep(schedule, std::move(step));
    }
  }
  AlgorithmStep copy;
  AddLocal(copy, RangeIn(BufferRole::kOutput, own), input);
  AddStep(schedule, std::move(copy));
  return schedule;
}

TransferSchedule DimensionReducescatter(Rank self, const GridOfRanks& grid,
                                        absl::Span<const ByteRange> blocks) {
  COORDD_CHECK(!grid.empty());
  const std::vector<BlockRing> rings =
      BlockRingsOf(grid, self, static_cast<int32_t>(blocks.size()));
  Partials partials(blocks);
  const PartialRooms rooms(rings.front(), partials);
  TransferSchedule schedule;
  for (const BlockRing& ring : rings) {
    const auto& [position, previous, next] = ring.place;
    const bool is_first = &ring == &rings.front();
    for (int32_t s = 0; s < ring.size() - 1; ++s) {
      AlgorithmStep step;
      for (const Rank owner : ring.OwnersAt(position - s - 1))
        AddSend(step, next, partials.of(owner));
      const bool is_last = &ring == &rings.back() && s == ring.size() - 2;
      int64_t room = rooms.Begin(s);
      for (const Rank owner : ring.OwnersAt(position - s - 2)) {
        BufferRange& partial = partials.of(owner);
        BufferRange to = partial;
        if (is_first) to = {BufferRole::kScratch, room, partial.size_bytes};
        if (is_last) to = {BufferRole::kOutput, 0, partial.size_bytes};
        AddReceive(step, previous, to, partial);
        room += partial.size_bytes;
        partial = to;
      }
      AddStep(schedule, std::move(step));
    }
  }
  schedule.scratch_bytes = rooms.scratch_bytes();
  return schedule;
}

}  // namespace coordd
