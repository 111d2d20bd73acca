// Allreduces by dimensions: the rules of schedules (schedule_simulation.h), the costs that the
// header promises, and which grid there is in which network.
#include "worker/algorithms/dimension_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "tests/worker/support/schedule_simulation.h"
#include "worker/algorithms/algorithm_table.h"
#include "worker/algorithms/ring_schedule.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Levels = std::vector<std::vector<int32_t>>;

int32_t RanksOf(const GridOfRanks& grid) {
  return std::accumulate(grid.sizes.begin(), grid.sizes.end(), 1, std::multiplies<>());
}

int64_t SentBytes(const TransferSchedule& schedule) {
  int64_t bytes = 0;
  for (const AlgorithmStep& step : schedule.steps)
    for (const SendOp& send : step.sends) bytes += send.from.size_bytes;
  return bytes;
}

// What leaves each domain, by its number.
std::vector<int64_t> UplinkBytes(const std::vector<TransferSchedule>& schedules,
                                 const std::vector<int32_t>& domains) {
  std::vector<int64_t> bytes(schedules.size());
  for (size_t r = 0; r < schedules.size(); ++r) {
    for (const AlgorithmStep& step : schedules[r].steps) {
      for (const SendOp& send : step.sends) {
        if (domains[static_cast<size_t>(ToInt(send.to))] != domains[r])
          bytes[static_cast<size_t>(domains[r])] += send.from.size_bytes;
      }
    }
  }
  return bytes;
}

std::vector<TransferSchedule> SchedulesOf(const GridOfRanks& grid, int64_t size_bytes) {
  std::vector<TransferSchedule> schedules;
  for (int32_t r = 0; r < RanksOf(grid); ++r)
    schedules.push_back(DimensionAllreduce(Rank{r}, grid, size_bytes, 1));
  return schedules;
}

TEST(DimensionSchedule, CombinesEachElementOnceInOneOrder) {
  const std::vector<std::vector<int32_t>> kGrids = {{2, 2},    {2, 3},    {3, 2},    {3, 3},
                                                    {5, 2},    {2, 2, 2}, {3, 2, 2}, {2, 3, 2},
                                                    {2, 2, 5}, {2, 7},    {4, 4},    {2, 2, 2, 3}};
  for (const std::vector<int32_t>& sizes : kGrids) {
    GridOfRanks grid{sizes, {}};
    const int32_t size = RanksOf(grid);
    CheckAllreduceOf(
        size, [&](Rank self, int64_t bytes) { return DimensionAllreduce(self, grid, bytes, 1); });
    // In any order.
    for (int32_t r = 0; r < size; ++r) grid.ranks.push_back(Rank{size - 1 - (r + 2) % size});
    CheckAllreduceOf(
        size, [&](Rank self, int64_t bytes) { return DimensionAllreduce(self, grid, bytes, 1); });
  }
}

TEST(DimensionSchedule, NeverCutsAnElement) {
  const GridOfRanks grid{{2, 3}, {}};
  for (int32_t r = 0; r < 6; ++r) {
    for (const AlgorithmStep& step : DimensionAllreduce(Rank{r}, grid, 8 * 37, 8).steps) {
      for (const SendOp& send : step.sends) {
        EXPECT_EQ(send.from.offset_bytes % 8, 0);
        EXPECT_EQ(send.from.size_bytes % 8, 0);
      }
    }
  }
}

TEST(DimensionSchedule, CostsWhatItsHeaderSays) {
  constexpr int64_t kBytes = 16 * 9 * 25;
  // Racks, and hosts in each.
  for (const auto& [racks, hosts] : {std::pair{2, 2}, {2, 8}, {4, 4}, {3, 5}, {5, 3}}) {
    const int32_t size = racks * hosts;
    std::vector<int32_t> rack_of;
    for (int32_t r = 0; r < size; ++r) rack_of.push_back(r / hosts);
    const GridOfRanks grid = GridOf(Levels{rack_of});
    ASSERT_EQ(RanksOf(grid), size);
    size_t steps = 0;
    for (const int32_t dimension : grid.sizes) steps += 2 * static_cast<size_t>(dimension - 1);
    EXPECT_EQ(DimensionSteps(grid), static_cast<int32_t>(steps));
    const std::vector<TransferSchedule> schedules = SchedulesOf(grid, kBytes);
    for (const TransferSchedule& schedule : schedules) {
      EXPECT_EQ(schedule.steps.size(), steps);
      EXPECT_NEAR(static_cast<double>(SentBytes(schedule)),
                  static_cast<double>(2 * kBytes * (size - 1) / size), 16);
    }
    std::vector<TransferSchedule> ring;
    for (int32_t r = 0; r < size; ++r) ring.push_back(RingAllreduce(Rank{r}, size, kBytes, 1));
    const std::vector<int64_t> uplinks = UplinkBytes(schedules, rack_of);
    for (int32_t rack = 0; rack < racks; ++rack) {
      EXPECT_NEAR(static_cast<double>(uplinks[static_cast<size_t>(rack)]),
                  static_cast<double>(2 * kBytes * (racks - 1) / racks), 16);
      EXPECT_NEAR(static_cast<double>(UplinkBytes(ring, rack_of)[static_cast<size_t>(rack)]),
                  static_cast<double>(2 * kBytes * (size - 1) / size), 16);
    }
  }
}

TEST(DimensionSchedule, SendsLessOverUplinksThanHalvingAndDoubling) {
  const std::vector<int32_t> rack_of = {0, 0, 0, 0, 1, 1, 1, 1};
  std::vector<TransferSchedule> halving;
  for (int32_t r = 0; r < 8; ++r)
    halving.push_back(MakeSliceSchedule(Rank{r}, 8, nullptr, 8000, 1));
  EXPECT_EQ(UplinkBytes(halving, rack_of)[0], 4 * 8000);
  const GridOfRanks grid = GridOf(Levels{rack_of});
  std::vector<TransferSchedule> by_dimensions;
  for (int32_t r = 0; r < 8; ++r)
    by_dimensions.push_back(MakeSliceSchedule(Rank{r}, 8, &grid, 8000, 1));
  EXPECT_EQ(UplinkBytes(by_dimensions, rack_of)[0], 8000);
  EXPECT_EQ(by_dimensions[0].steps.size(), halving[0].steps.size());
}

TEST(Grid, IsOfTheLevelsOfTheNetwork) {
  // Two aisles of three racks of four.
  std::vector<int32_t> aisle, rack;
  for (int32_t r = 0; r < 24; ++r) {
    aisle.push_back(r / 12);
    rack.push_back(r / 4);
  }
  EXPECT_THAT(GridOf(Levels{aisle, rack}).sizes, ElementsAre(2, 2, 3, 2));
  EXPECT_THAT(GridOf(Levels{aisle, rack}).ranks, IsEmpty());
  EXPECT_THAT(GridOf(Levels{rack}).sizes, ElementsAre(2, 2, 2, 3));
  EXPECT_THAT(GridOf(Levels{aisle}).sizes, ElementsAre(2, 2, 3, 2));
  // A level that says the same as the one before, and one that says nothing.
  std::vector<int32_t> alone(24);
  std::iota(alone.begin(), alone.end(), 0);
  EXPECT_THAT(GridOf(Levels{std::vector<int32_t>(24), aisle, aisle, rack, alone}).sizes,
              ElementsAre(2, 2, 3, 2));
}

TEST(Grid, IsNoneWhereThereIsOneDimension) {
  EXPECT_TRUE(GridOf({}).empty());
  EXPECT_TRUE(GridOf(Levels{{0, 1, 2, 3}}).empty());  // a node in each rack
  EXPECT_TRUE(GridOf(Levels{{0, 0, 0, 0}}).empty());
  EXPECT_TRUE(GridOf(Levels{{0, 0, 1, 1, 1}}).empty());  // no common divisor
}

// Racks of four and six: five lots of two, none of which is in two racks.
TEST(Grid, OfUnevenDomainsHasTheirCommonDivisor) {
  const GridOfRanks grid = GridOf(Levels{{0, 0, 0, 0, 1, 1, 1, 1, 1, 1}});
  EXPECT_THAT(grid.sizes, ElementsAre(2, 5));
  // Four are of two lots, and are not cut into them where something is uneven.
  EXPECT_THAT(GridOf(Levels{{0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}}).sizes, ElementsAre(4, 3));
  // A rank of each lot sends to the next rack, whatever the rack's size is: a ring's bytes.
  const std::vector<int64_t> uplinks =
      UplinkBytes(SchedulesOf(grid, 1000), {0, 0, 0, 0, 1, 1, 1, 1, 1, 1});
  EXPECT_EQ(uplinks[0], 2 * 1000 * 4 / 5);
  EXPECT_EQ(uplinks[1], 2 * 1000 * 4 / 5);
}

TEST(Grid, OfFewStepsIsForSmallAllreducesToo) {
  auto places = [](int32_t racks, int32_t hosts) {
    std::vector<int32_t> rack_of;
    for (int32_t node = 0; node < racks * hosts; ++node) rack_of.push_back(node / hosts);
    return PlacesApart(GridOf(Levels{rack_of}), racks * hosts);
  };
  EXPECT_EQ(places(2, 2), Places::kApartInGrid);
  EXPECT_EQ(places(4, 8), Places::kApartInGrid);
  EXPECT_EQ(places(3, 4), Places::kApartInGrid);  // 2, 2, 3: 8 steps, as with a fold
  EXPECT_EQ(places(7, 11), Places::kApart);       // 32 steps, where 14 will do
  EXPECT_EQ(PlacesApart({}, 4), Places::kApart);
}

// As after generations in which those who were left kept their order.
TEST(Grid, FindsDomainsWhoseRanksDoNotLieTogether) {
  const std::vector<int32_t> rack_of = {0, 1, 0, 1, 1, 0};
  const GridOfRanks grid = GridOf(Levels{rack_of});
  EXPECT_THAT(grid.sizes, ElementsAre(3, 2));
  EXPECT_THAT(grid.ranks, ElementsAre(Rank{0}, Rank{2}, Rank{5}, Rank{1}, Rank{3}, Rank{4}));
  EXPECT_THAT(UplinkBytes(SchedulesOf(grid, 600), rack_of), ElementsAre(600, 600, 0, 0, 0, 0));
}

// Whatever the network is: ranks of a lot are of one domain, and all are in the grid once.
TEST(Grid, HoldsForAnyNetwork) {
  Random random(11);
  for (int round = 0; round < 300; ++round) {
    const int32_t size = 2 + static_cast<int32_t>(random.Below(14));
    std::vector<int32_t> aisle, rack;
    std::map<int32_t, int32_t> aisles;
    std::map<std::pair<int32_t, int32_t>, int32_t> racks;
    for (int32_t r = 0; r < size; ++r) {
      const int32_t a = static_cast<int32_t>(random.Below(2));
      const int32_t b = static_cast<int32_t>(random.Below(3));
      aisle.push_back(aisles.try_emplace(a, static_cast<int32_t>(aisles.size())).first->second);
      rack.push_back(racks.try_emplace({a, b}, static_cast<int32_t>(racks.size())).first->second);
    }
    const GridOfRanks grid = GridOf(Levels{aisle, rack});
    if (grid.empty()) continue;
    ASSERT_EQ(RanksOf(grid), size);
    const int32_t lot = grid.sizes[0];
    auto at = [&](int32_t index) {
      return grid.ranks.empty() ? index : ToInt(grid.ranks[static_cast<size_t>(index)]);
    };
    std::set<int32_t> seen;
    for (int32_t index = 0; index < size; ++index) {
      seen.insert(at(index));
      ASSERT_EQ(aisle[static_cast<size_t>(at(index))],
                aisle[static_cast<size_t>(at(index / lot * lot))]);
    }
    ASSERT_EQ(std::ssize(seen), size);
    CheckAllreduceOf(
        size, [&](Rank self, int64_t bytes) { return DimensionAllreduce(self, grid, bytes, 1); });
  }
}

}  // namespace
}  // namespace coordd
