// Collectives by dimensions: the rules of schedules (schedule_simulation.h), the costs that the
// header promises, and which grid there is in which network.
#include "worker/algorithms/dimension_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <numeric>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "tests/worker/support/schedule_simulation.h"
#include "worker/algorithms/algorithm_table.h"
#include "worker/algorithms/pairwise_schedule.h"
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

// Each of them, with the ranks in their order and in another one.
void ForEveryGrid(const std::function<void(const GridOfRanks&)>& check) {
  const std::vector<std::vector<int32_t>> kGrids = {{2, 2},    {2, 3},    {3, 2},    {3, 3},
                                                    {5, 2},    {2, 2, 2}, {3, 2, 2}, {2, 3, 2},
                                                    {2, 2, 5}, {2, 7},    {4, 4},    {2, 2, 2, 3}};
  for (const std::vector<int32_t>& sizes : kGrids) {
    GridOfRanks grid{sizes, {}};
    check(grid);
    const int32_t size = RanksOf(grid);
    for (int32_t r = 0; r < size; ++r) grid.ranks.push_back(Rank{size - 1 - (r + 2) % size});
    check(grid);
  }
}

TEST(DimensionSchedule, CombinesEachElementOnceInOneOrder) {
  ForEveryGrid([](const GridOfRanks& grid) {
    CheckAllreduceOf(RanksOf(grid), [&](Rank self, int64_t bytes) {
      return DimensionAllreduce(self, grid, bytes, 1);
    });
  });
}

// Some of them empty, and all.
std::vector<std::vector<ByteRange>> BlocksFor(const GridOfRanks& grid) {
  const int32_t size = RanksOf(grid);
  std::vector<int64_t> ragged, few;
  for (int32_t r = 0; r < size; ++r) {
    ragged.push_back(r % 3 == 1 ? 0 : r % 4 + 1);
    few.push_back(r == size - 2 ? 7 : 0);
  }
  return {RangesOf(std::vector<int64_t>(static_cast<size_t>(size), 3)), RangesOf(ragged),
          RangesOf(few), RangesOf(std::vector<int64_t>(static_cast<size_t>(size), 0))};
}

TEST(DimensionSchedule, BringsEveryBlockEverywhere) {
  ForEveryGrid([](const GridOfRanks& grid) {
    for (const std::vector<ByteRange>& blocks : BlocksFor(grid)) {
      CheckAllgatherOf(blocks, InStep::kSeveral,
                       [&](Rank self) { return DimensionAllgather(self, grid, blocks); });
    }
  });
}

// A formula without the number of its element.
std::string OrderOf(const std::string& formula) {
  return std::regex_replace(formula, std::regex(":[0-9]+;"), ";");
}

// In an order that is the same whatever the sizes of the blocks are.
TEST(DimensionSchedule, CombinesEachElementOfABlockOnceInOneOrder) {
  ForEveryGrid([](const GridOfRanks& grid) {
    std::map<int32_t, std::string> orders;
    for (const std::vector<ByteRange>& blocks : BlocksFor(grid)) {
      const std::vector<Cells> results = CheckReducescatterOf(
          blocks, InStep::kSeveral,
          [&](Rank self) { return DimensionReducescatter(self, grid, blocks); });
      for (int32_t r = 0; r < RanksOf(grid); ++r) {
        for (const std::string& formula : results[static_cast<size_t>(r)])
          EXPECT_EQ(orders.try_emplace(r, OrderOf(formula)).first->second, OrderOf(formula));
      }
    }
  });
}

// The output may be a part of the input: nothing is written there that is still read.
TEST(DimensionSchedule, WritesAReducescattersOutputLast) {
  ForEveryGrid([](const GridOfRanks& grid) {
    const std::vector<ByteRange> blocks = BlocksFor(grid).front();
    for (int32_t r = 0; r < RanksOf(grid); ++r) {
      const TransferSchedule schedule = DimensionReducescatter(Rank{r}, grid, blocks);
      for (const AlgorithmStep& step : schedule.steps) {
        EXPECT_THAT(step.locals, IsEmpty());
        for (const ReceiveOp& receive : step.receives) {
          EXPECT_EQ(receive.to.buffer == BufferRole::kOutput, &step == &schedule.steps.back());
        }
      }
    }
  });
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

// Of racks with as many hosts each, by rank.
std::vector<int32_t> RacksOf(int32_t racks, int32_t hosts) {
  std::vector<int32_t> rack_of;
  for (int32_t r = 0; r < racks * hosts; ++r) rack_of.push_back(r / hosts);
  return rack_of;
}

template <typename Make>
std::vector<TransferSchedule> OfEachRank(size_t size, const Make& make) {
  std::vector<TransferSchedule> schedules;
  for (size_t r = 0; r < size; ++r) schedules.push_back(make(Rank{static_cast<int32_t>(r)}));
  return schedules;
}

TEST(DimensionSchedule, OfBlocksCostsWhatItsHeaderSays) {
  for (const auto& [racks, hosts] : {std::pair{2, 2}, {2, 8}, {4, 4}, {3, 5}, {5, 3}}) {
    const std::vector<int32_t> rack_of = RacksOf(racks, hosts);
    const GridOfRanks grid = GridOf(Levels{rack_of});
    const int64_t size = racks * hosts;
    constexpr int64_t kEach = 64;
    const int64_t all = kEach * size;
    const std::vector<ByteRange> blocks =
        RangesOf(std::vector<int64_t>(static_cast<size_t>(size), kEach));
    const auto gathers = OfEachRank(
        rack_of.size(), [&](Rank self) { return DimensionAllgather(self, grid, blocks); });
    const auto scatters = OfEachRank(
        rack_of.size(), [&](Rank self) { return DimensionReducescatter(self, grid, blocks); });
    const size_t steps = static_cast<size_t>(DimensionSteps(grid)) / 2;
    for (const TransferSchedule& gather : gathers) {
      EXPECT_EQ(gather.steps.size(), steps + 1);  // the own block is copied behind them
      EXPECT_EQ(SentBytes(gather), all * (size - 1) / size);
      EXPECT_EQ(gather.scratch_bytes, 0);
    }
    for (const TransferSchedule& scatter : scatters) {
      EXPECT_EQ(scatter.steps.size(), steps);
      EXPECT_EQ(SentBytes(scatter), all * (size - 1) / size);
      EXPECT_EQ(scatter.scratch_bytes, all * std::min(2, grid.sizes[0] - 1) / grid.sizes[0]);
    }
    const auto ring =
        OfEachRank(rack_of.size(), [&](Rank self) { return RingAllgather(self, blocks); });
    const auto pairwise =
        OfEachRank(rack_of.size(), [&](Rank self) { return PairwiseReduceScatter(self, blocks); });
    for (size_t rack = 0; rack < static_cast<size_t>(racks); ++rack) {
      EXPECT_EQ(UplinkBytes(gathers, rack_of)[rack], all * (racks - 1) / racks);
      EXPECT_EQ(UplinkBytes(scatters, rack_of)[rack], all * (racks - 1) / racks);
      EXPECT_EQ(UplinkBytes(ring, rack_of)[rack], all * (size - 1) / size);
      EXPECT_EQ(UplinkBytes(pairwise, rack_of)[rack], all * hosts * (racks - 1) / racks);
    }
  }
}

// What comes into each domain, by its number.
std::vector<int64_t> DownlinkBytes(const std::vector<TransferSchedule>& schedules,
                                   const std::vector<int32_t>& domains) {
  std::vector<int64_t> bytes(schedules.size());
  for (size_t r = 0; r < schedules.size(); ++r) {
    for (const AlgorithmStep& step : schedules[r].steps) {
      for (const ReceiveOp& receive : step.receives) {
        if (domains[static_cast<size_t>(ToInt(receive.from))] != domains[r])
          bytes[static_cast<size_t>(domains[r])] += receive.to.size_bytes;
      }
    }
  }
  return bytes;
}

// An allgather brings in, and a reducescatter takes out, each block of the other racks once.
TEST(DimensionSchedule, OfUnevenBlocksCrossesAnUplinkOnceForEach) {
  for (const auto& [racks, hosts] : {std::pair{2, 2}, {2, 3}, {4, 4}, {3, 5}, {5, 3}}) {
    const std::vector<int32_t> rack_of = RacksOf(racks, hosts);
    const GridOfRanks grid = GridOf(Levels{rack_of});
    std::vector<int64_t> sizes;
    std::vector<int64_t> of_racks(static_cast<size_t>(racks));
    for (size_t r = 0; r < rack_of.size(); ++r) {
      sizes.push_back(static_cast<int64_t>(r % 4 == 1 ? 0 : 10 * r * r + 1));
      of_racks[static_cast<size_t>(rack_of[r])] += sizes.back();
    }
    const std::vector<ByteRange> blocks = RangesOf(sizes);
    const auto gathers = OfEachRank(
        rack_of.size(), [&](Rank self) { return DimensionAllgather(self, grid, blocks); });
    const auto scatters = OfEachRank(
        rack_of.size(), [&](Rank self) { return DimensionReducescatter(self, grid, blocks); });
    for (size_t rack = 0; rack < of_racks.size(); ++rack) {
      const int64_t of_others = Hull(blocks).size_bytes - of_racks[rack];
      EXPECT_EQ(DownlinkBytes(gathers, rack_of)[rack], of_others);
      EXPECT_EQ(UplinkBytes(scatters, rack_of)[rack], of_others);
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
  EXPECT_EQ(places(3, 4), Places::kApartInGrid);       // 2, 2, 3: 8 steps, as with a fold
  EXPECT_EQ(places(7, 11), Places::kApartInLongGrid);  // 32 steps, where 14 will do
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
    for (const std::vector<ByteRange>& blocks : BlocksFor(grid)) {
      CheckAllgatherOf(blocks, InStep::kSeveral,
                       [&](Rank self) { return DimensionAllgather(self, grid, blocks); });
      CheckReducescatterOf(blocks, InStep::kSeveral,
                           [&](Rank self) { return DimensionReducescatter(self, grid, blocks); });
    }
  }
}

}  // namespace
}  // namespace coordd
