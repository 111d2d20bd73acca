// Simulates the schedules of all ranks without a transport: the rules of collective_schedule.h
// hold, no message lacks its partner, nothing deadlocks, and every result has each rank's
// contribution exactly once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "tests/worker/support/schedule_simulation.h"
#include "worker/algorithms/algorithm_table.h"
#include "worker/algorithms/pairwise_schedule.h"
#include "worker/algorithms/recursive_schedule.h"
#include "worker/algorithms/ring_schedule.h"
#include "worker/algorithms/rooted_schedule.h"
#include "worker/algorithms/tree_schedule.h"

namespace coordd {
namespace {

constexpr int32_t kMaxWorld = 17;

void CheckAllreduce(const std::function<TransferSchedule(Rank, int32_t, int64_t, int64_t)>& make) {
  for (int32_t size = 2; size <= kMaxWorld; ++size)
    CheckAllreduceOf(size, [&](Rank self, int64_t bytes) { return make(self, size, bytes, 1); });
}

TEST(Schedules, RingAllreduceCombinesEachElementOnceInOneOrder) { CheckAllreduce(RingAllreduce); }
TEST(Schedules, HalvingDoublingAllreduceCombinesEachElementOnceInOneOrder) {
  CheckAllreduce(HalvingDoublingAllreduce);
}
TEST(Schedules, RecursiveDoublingAllreduceCombinesEachElementOnceInOneOrder) {
  CheckAllreduce(RecursiveDoublingAllreduce);
}

TEST(Schedules, ElementsAreNeverCut) {
  for (int32_t size = 2; size <= kMaxWorld; ++size) {
    for (int32_t r = 0; r < size; ++r) {
      for (const TransferSchedule& schedule :
           {RingAllreduce(Rank{r}, size, 8 * 37, 8),
            HalvingDoublingAllreduce(Rank{r}, size, 8 * 37, 8)}) {
        for (const AlgorithmStep& step : schedule.steps) {
          for (const SendOp& send : step.sends) {
            EXPECT_EQ(send.from.offset_bytes % 8, 0);
            EXPECT_EQ(send.from.size_bytes % 8, 0);
          }
        }
      }
    }
  }
}

std::vector<int64_t> RaggedBlocks(int32_t size) {
  std::vector<int64_t> blocks;
  for (int32_t r = 0; r < size; ++r) blocks.push_back(r % 3 == 1 ? 0 : r % 4 + 1);
  return blocks;
}

TEST(Schedules, RingAllgatherBringsEveryBlockEverywhere) {
  for (int32_t size = 1; size <= kMaxWorld; ++size) {
    const std::vector<ByteRange> blocks = RangesOf(RaggedBlocks(size));
    CheckAllgatherOf(blocks, InStep::kOne, [&](Rank self) { return RingAllgather(self, blocks); });
  }
}

TEST(Schedules, PairwiseReduceScatterCombinesEachElementOnce) {
  for (int32_t size = 1; size <= kMaxWorld; ++size) {
    const std::vector<ByteRange> blocks = RangesOf(RaggedBlocks(size));
    CheckReducescatterOf(blocks, InStep::kOne,
                         [&](Rank self) { return PairwiseReduceScatter(self, blocks); });
  }
}

TEST(Schedules, PairwiseAlltoallTransposesTheBlocks) {
  for (int32_t size = 1; size <= kMaxWorld; ++size) {
    auto elements = [](int32_t from, int32_t to) { return int64_t{(from * 3 + to) % 4}; };
    std::vector<TransferSchedule> schedules;
    std::vector<Buffers> buffers;
    std::vector<Cells> expected(static_cast<size_t>(size));
    for (int32_t r = 0; r < size; ++r) {
      std::vector<int64_t> in, out;
      for (int32_t peer = 0; peer < size; ++peer) {
        in.push_back(elements(r, peer));
        out.push_back(elements(peer, r));
      }
      const std::vector<ByteRange> in_ranges = RangesOf(in);
      schedules.push_back(PairwiseAlltoall(Rank{r}, in_ranges, RangesOf(out)));
      CheckRules(schedules.back(), Rank{r}, /*shared=*/false);
      const Cells input = InputOf(r, Hull(in_ranges).size_bytes);
      buffers.push_back(
          {input, Cells(static_cast<size_t>(Hull(RangesOf(out)).size_bytes), "garbage"), {}});
      for (int32_t peer = 0; peer < size; ++peer) {
        const ByteRange range = in_ranges[static_cast<size_t>(peer)];
        Cells& to = expected[static_cast<size_t>(peer)];
        to.insert(to.end(), input.begin() + range.offset_bytes,
                  input.begin() + range.offset_bytes + range.size_bytes);
      }
    }
    Simulation simulation(schedules, buffers);
    simulation.Run();
    for (size_t r = 0; r < expected.size(); ++r)
      EXPECT_EQ(simulation.buffers(r).output, expected[r]);
  }
}

void CheckBroadcast(const std::function<TransferSchedule(Rank, int32_t, Rank, int64_t)>& make) {
  for (int32_t size = 1; size <= kMaxWorld; ++size) {
    for (int32_t root = 0; root < size; ++root) {
      std::vector<TransferSchedule> schedules;
      std::vector<Buffers> buffers;
      for (int32_t r = 0; r < size; ++r) {
        schedules.push_back(make(Rank{r}, size, Rank{root}, 3));
        CheckRules(schedules.back(), Rank{r}, /*shared=*/true);
        buffers.push_back({{}, r == root ? InputOf(root, 3) : Cells(3, "garbage"), {}});
      }
      Simulation simulation(schedules, buffers);
      simulation.Run();
      for (int32_t r = 0; r < size; ++r)
        EXPECT_EQ(simulation.buffers(static_cast<size_t>(r)).output, InputOf(root, 3));
    }
  }
}

// Each third rank, then those behind them, and so on: an order that is not that of the numbers.
std::vector<Rank> InThirds(int32_t size) {
  std::vector<Rank> order;
  for (int32_t first = 0; first < 3; ++first)
    for (int32_t r = first; r < size; r += 3) order.push_back(Rank{r});
  return order;
}

TEST(Schedules, BinomialBroadcastReachesEveryRankFromEveryRoot) {
  CheckBroadcast([](Rank self, int32_t size, Rank root, int64_t size_bytes) {
    return BinomialBroadcast(self, size, root, size_bytes);
  });
  CheckBroadcast([](Rank self, int32_t size, Rank root, int64_t size_bytes) {
    return BinomialBroadcast(self, size, root, size_bytes, InThirds(size));
  });
}

TEST(Schedules, ChainsAndTreesOfTwoReachEveryRankFromEveryRoot) {
  for (const int32_t arity : {1, 2, 3}) {
    CheckBroadcast([arity](Rank self, int32_t size, Rank root, int64_t size_bytes) {
      return ArityBroadcast(self, size, root, arity, size_bytes);
    });
    CheckBroadcast([arity](Rank self, int32_t size, Rank root, int64_t size_bytes) {
      return ArityBroadcast(self, size, root, arity, size_bytes, InThirds(size));
    });
  }
}

TEST(Schedules, ATreeOfTwoIsAsDeepAsItHasTo) {
  for (const int32_t size : {2, 3, 7, 8, 100, 1023, 4096}) {
    std::vector<int32_t> depth(static_cast<size_t>(size), 0);
    for (int32_t r = 1; r < size; ++r) {  // a parent stands before its children
      const TransferSchedule schedule = ArityBroadcast(Rank{r}, size, Rank{0}, 2, 8);
      ASSERT_EQ(schedule.steps.front().receives.size(), 1u);
      const int32_t parent = ToInt(schedule.steps.front().receives.front().from);
      depth[static_cast<size_t>(r)] = depth[static_cast<size_t>(parent)] + 1;
    }
    EXPECT_LE(*std::max_element(depth.begin(), depth.end()),
              std::bit_width(static_cast<uint32_t>(size)));
  }
}

// Racks of 8 among which ranks are dealt out one by one, so that neighbours are in different ones.
TEST(Schedules, LittleOfABroadcastCrossesBetweenRacks) {
  constexpr int32_t kSize = 64, kRacks = 8;
  std::vector<std::vector<int32_t>> levels(1);
  for (int32_t r = 0; r < kSize; ++r) levels[0].push_back(r % kRacks);
  const GridOfRanks grid = GridOf(levels);
  const auto crossings = [&](int64_t whole_bytes, Rank root) {
    int32_t crossing = 0;
    for (int32_t r = 0; r < kSize; ++r) {
      for (const AlgorithmStep& step :
           MakeSliceBroadcast(Rank{r}, kSize, root, &grid, 1 << 16, whole_bytes).steps) {
        for (const SendOp& send : step.sends) crossing += (ToInt(send.to) - r) % kRacks != 0;
      }
    }
    return crossing;
  };
  // A binomial tree, a tree of two, a chain. A root in the middle of its rack shifts all of them.
  for (const int64_t whole_bytes : {1 << 14, 1 << 20, 1 << 26}) {
    EXPECT_LE(crossings(whole_bytes, Rank{0}), kRacks + 4) << whole_bytes;
    EXPECT_LT(crossings(whole_bytes, Rank{13}), 3 * kRacks) << whole_bytes;
  }
  EXPECT_EQ(crossings(1 << 26, Rank{0}), kRacks - 1);
}

void CheckReduce(const std::function<TransferSchedule(Rank, int32_t, Rank, int64_t)>& make) {
  for (int32_t size = 1; size <= kMaxWorld; ++size) {
    for (int32_t root = 0; root < size; ++root) {
      const int64_t elements = 5 + root % 3 * 16;
      std::vector<TransferSchedule> schedules;
      std::vector<Buffers> buffers;
      for (int32_t r = 0; r < size; ++r) {
        schedules.push_back(make(Rank{r}, size, Rank{root}, elements));
        CheckRules(schedules.back(), Rank{r}, /*shared=*/true);
        const size_t out = static_cast<size_t>(r == root ? elements : 0);
        buffers.push_back({InputOf(r, elements), Cells(out, "garbage"), {}});
        // In place on every other root.
        if (r == root && root % 2 == 1) buffers.back() = {{}, InputOf(r, elements), {}, true};
      }
      Simulation simulation(schedules, buffers);
      simulation.Run();
      const Cells& result = simulation.buffers(static_cast<size_t>(root)).output;
      if (size == 1) continue;  // a local copy
      for (int64_t i = 0; i < elements; ++i) ExpectAllOnce(result[static_cast<size_t>(i)], size, i);
    }
  }
}

TEST(Schedules, BinomialReduceCombinesEachElementOnceOnTheRoot) { CheckReduce(BinomialReduce); }
TEST(Schedules, ScatterGatherReduceCombinesEachElementOnceOnTheRoot) {
  CheckReduce([](Rank self, int32_t size, Rank root, int64_t elements) {
    return ScatterGatherReduce(self, root, SplitEvenly(elements, size, 1));
  });
}

TEST(Schedules, DirectGatherBringsEveryBlockToTheRoot) {
  for (int32_t size = 1; size <= kMaxWorld; ++size) {
    const std::vector<ByteRange> blocks = RangesOf(RaggedBlocks(size));
    for (int32_t root = 0; root < size; ++root) {
      std::vector<TransferSchedule> schedules;
      std::vector<Buffers> buffers;
      Cells expected;
      for (int32_t r = 0; r < size; ++r) {
        const int64_t own = blocks[static_cast<size_t>(r)].size_bytes;
        const Cells input = InputOf(r, own);
        expected.insert(expected.end(), input.begin(), input.end());
        const bool is_root = r == root;
        schedules.push_back(
            DirectGather(Rank{r}, Rank{root}, own, is_root ? blocks : std::vector<ByteRange>()));
        CheckRules(schedules.back(), Rank{r}, /*shared=*/false);
        const size_t out = is_root ? static_cast<size_t>(Hull(blocks).size_bytes) : 0;
        buffers.push_back({input, Cells(out, "garbage"), {}});
      }
      Simulation simulation(schedules, buffers);
      simulation.Run();
      EXPECT_EQ(simulation.buffers(static_cast<size_t>(root)).output, expected);
    }
  }
}

TEST(Schedules, DisseminationBarrierHearsOfEveryRank) {
  for (int32_t size = 1; size <= kMaxWorld; ++size) {
    // Who has heard of whom: a message carries all that its sender knew when its step began.
    std::vector<std::vector<bool>> knows(static_cast<size_t>(size));
    std::vector<TransferSchedule> schedules;
    for (int32_t r = 0; r < size; ++r) {
      schedules.push_back(DisseminationBarrier(Rank{r}, size));
      CheckRules(schedules.back(), Rank{r}, /*shared=*/true);
      knows[static_cast<size_t>(r)].resize(static_cast<size_t>(size));
      knows[static_cast<size_t>(r)][static_cast<size_t>(r)] = true;
      EXPECT_EQ(schedules[static_cast<size_t>(r)].steps.size(), schedules[0].steps.size());
    }
    for (size_t s = 0; s < schedules[0].steps.size(); ++s) {
      const std::vector<std::vector<bool>> before = knows;
      for (size_t r = 0; r < schedules.size(); ++r) {
        ASSERT_EQ(schedules[r].steps[s].receives.size(), 1u);
        const size_t from = static_cast<size_t>(ToInt(schedules[r].steps[s].receives[0].from));
        EXPECT_EQ(schedules[from].steps[s].sends[0].to, Rank{static_cast<int32_t>(r)});
        for (size_t i = 0; i < knows.size(); ++i)
          if (before[from][i]) knows[r][i] = true;
      }
    }
    for (const std::vector<bool>& row : knows)
      EXPECT_EQ(std::count(row.begin(), row.end(), false), 0);
  }
}

TEST(Schedules, CostWhatTheirHeadersSay) {
  auto sent = [](const TransferSchedule& schedule) {
    int64_t bytes = 0;
    for (const AlgorithmStep& step : schedule.steps) {
      for (const SendOp& send : step.sends) bytes += send.from.size_bytes;
    }
    return bytes;
  };
  const TransferSchedule ring = RingAllreduce(Rank{3}, 8, 8000, 1);
  EXPECT_EQ(ring.steps.size(), 14u);
  EXPECT_EQ(sent(ring), 2 * 8000 * 7 / 8);
  const TransferSchedule halving = HalvingDoublingAllreduce(Rank{3}, 8, 8000, 1);
  EXPECT_EQ(halving.steps.size(), 6u);
  EXPECT_EQ(sent(halving), 2 * 8000 * 7 / 8);
  const TransferSchedule doubling = RecursiveDoublingAllreduce(Rank{3}, 8, 8000, 1);
  EXPECT_EQ(doubling.steps.size(), 3u);
  EXPECT_EQ(sent(doubling), 3 * 8000);
  EXPECT_EQ(DisseminationBarrier(Rank{0}, 17).steps.size(), 5u);
  EXPECT_EQ(BinomialReduce(Rank{0}, 17, Rank{0}, 100).steps.size(), 5u);
  EXPECT_EQ(sent(BinomialReduce(Rank{3}, 8, Rank{0}, 8000)), 8000);
  const TransferSchedule scattered = ScatterGatherReduce(Rank{3}, Rank{0}, SplitEvenly(8000, 8, 1));
  EXPECT_EQ(scattered.steps.size(), 8u);
  EXPECT_EQ(sent(scattered), 8000);
  EXPECT_EQ(scattered.scratch_bytes, 1000);
  // Of a slice among few nodes, and among many.
  EXPECT_EQ(MakeSliceReduce(Rank{0}, 4, Rank{0}, 8000, 4).steps.size(), 2u);
  EXPECT_EQ(sent(MakeSliceReduce(Rank{3}, 8, Rank{0}, 8000, 4)), 8000);
  EXPECT_EQ(MakeSliceReduce(Rank{3}, 8, Rank{0}, 8000, 4).scratch_bytes, 1000);
}

TEST(AlgorithmTable, ChoosesByKindSizeAndWorld) {
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 4, 1), Algorithm::kLocalCopy);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 4, 2), Algorithm::kRecursiveDoubling);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 18, 6), Algorithm::kHalvingDoubling);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 28, 6), Algorithm::kRing);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 12, 6, Places::kEvenNodes),
            Algorithm::kLeaders);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 14, 6, Places::kEvenNodes),
            Algorithm::kRecursiveDoubling);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 15, 6, Places::kEvenNodes),
            Algorithm::kHierarchical);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 18, 6, Places::kApart),
            Algorithm::kHalvingDoubling);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 18, 2, Places::kApart),
            Algorithm::kRecursiveDoubling);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 18, 2), Algorithm::kHalvingDoubling);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 19, 2, Places::kApart),
            Algorithm::kSlices);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 20, 6, Places::kApart),
            Algorithm::kSlices);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 10, 6, Places::kUnevenNodes),
            Algorithm::kLeaders);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 20, 6, Places::kUnevenNodes),
            Algorithm::kHierarchical);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllgather, 1 << 20, 6, Places::kUnevenNodes),
            Algorithm::kRing);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAlltoall, 0, 6, Places::kEvenNodes),
            Algorithm::kHierarchical);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kBarrier, 0, 6, Places::kEvenNodes),
            Algorithm::kLeaders);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 10, 3, Places::kThinNodes),
            Algorithm::kLeaders);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 28, 3, Places::kThinNodes),
            Algorithm::kRing);
  EXPECT_FALSE(HasHierarchy(CollectiveKind::kReducescatter, /*even=*/false));
  EXPECT_TRUE(HasHierarchy(CollectiveKind::kReducescatter, /*even=*/true));
  EXPECT_TRUE(HasHierarchy(CollectiveKind::kAllreduce, /*even=*/false));
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kBroadcast, 1 << 28, 6), Algorithm::kBinomialTree);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kBroadcast, 1 << 17, 6, Places::kApart),
            Algorithm::kBinomialTree);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kBroadcast, 1 << 20, 6, Places::kApart),
            Algorithm::kSlices);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kBroadcast, 1 << 20, 2, Places::kApart),
            Algorithm::kBinomialTree);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kBroadcast, 1 << 14, 6, Places::kEvenNodes),
            Algorithm::kBinomialTree);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kBroadcast, 1 << 12, 6, Places::kEvenNodes),
            Algorithm::kLeaders);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kBroadcast, 1 << 15, 6, Places::kEvenNodes),
            Algorithm::kHierarchical);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kReduce, 1 << 10, 6), Algorithm::kBinomialTree);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kReduce, 1 << 20, 6), Algorithm::kScatterGather);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kReduce, 1 << 12, 3, Places::kThinNodes),
            Algorithm::kLeaders);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kReduce, 1 << 13, 3, Places::kThinNodes),
            Algorithm::kHierarchical);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kReduce, 1 << 20, 6, Places::kApart),
            Algorithm::kScatterGather);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kGather, 1, 6), Algorithm::kDirect);
  EXPECT_EQ(Name(Algorithm::kHalvingDoubling), "halving_doubling");
  EXPECT_EQ(Name(Algorithm::kDirect), "direct");
  EXPECT_EQ(Name(Algorithm::kDimensions), "dimensions");
  EXPECT_EQ(NameInGrid(Algorithm::kDimensions), "dimensions");
  EXPECT_EQ(NameInGrid(Algorithm::kSlices), "slices_by_dimensions");
  EXPECT_EQ(NameInGrid(Algorithm::kHierarchical), "hierarchical_by_dimensions");
  EXPECT_EQ(NameInGrid(Algorithm::kRing), "ring");
}

TEST(AlgorithmTable, ChoosesDimensionsInAGrid) {
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 14, 6, Places::kApartInGrid),
            Algorithm::kRecursiveDoubling);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 18, 6, Places::kApartInGrid),
            Algorithm::kDimensions);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 20, 6, Places::kApartInGrid),
            Algorithm::kSlices);
  // At any size, also where an allreduce would have more steps so.
  for (const Places places : {Places::kApartInGrid, Places::kApartInLongGrid}) {
    for (const CollectiveKind kind : {CollectiveKind::kAllgather, CollectiveKind::kReducescatter}) {
      EXPECT_EQ(ChooseAlgorithm(kind, 4, 6, places), Algorithm::kDimensions);
      EXPECT_EQ(ChooseAlgorithm(kind, 1 << 18, 6, places), Algorithm::kDimensions);
      EXPECT_EQ(ChooseAlgorithm(kind, 1 << 20, 6, places), Algorithm::kSlices);
    }
  }
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllgather, 1 << 20, 6, Places::kApart),
            Algorithm::kRing);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kReducescatter, 1 << 20, 6, Places::kApart),
            Algorithm::kPairwise);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 18, 6, Places::kApartInLongGrid),
            Algorithm::kHalvingDoubling);
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, 1 << 20, 6, Places::kApartInLongGrid),
            Algorithm::kSlices);
}

}  // namespace
}  // namespace coordd
