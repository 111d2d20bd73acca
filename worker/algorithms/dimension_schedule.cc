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

}  // namespace coordd
