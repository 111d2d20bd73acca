// Simulates the schedules of all ranks without a transport: the rules of collective_schedule.h
// hold, no message lacks its partner, nothing deadlocks, and every result has each rank's
// contribution exactly once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/algorithms/algorithm_table.h"
#include "worker/algorithms/pairwise_schedule.h"
#include "worker/algorithms/recursive_schedule.h"
#include "worker/algorithms/ring_schedule.h"
#include "worker/algorithms/rooted_schedule.h"
#include "worker/algorithms/tree_schedule.h"

namespace coordd {
namespace {

constexpr int32_t kMaxWorld = 17;

// An element of a simulated buffer is the formula of how it was made, e.g. "(a+b)": combining in
// another order or twice shows. One element is one byte here.
using Cells = std::vector<std::string>;

struct Buffers {
  Cells input, output, scratch;
  bool in_place = false;

  Cells& Of(BufferRole role) {
    if (role == BufferRole::kScratch) return scratch;
    return role == BufferRole::kInput && !in_place ? input : output;
  }
  Cells Read(const BufferRange& slice) {
    Cells& cells = Of(slice.buffer);
    EXPECT_GE(slice.offset_bytes, 0);
    EXPECT_LE(slice.offset_bytes + slice.size_bytes, static_cast<int64_t>(cells.size()));
    return Cells(cells.begin() + slice.offset_bytes,
                 cells.begin() + slice.offset_bytes + slice.size_bytes);
  }
  void Write(const BufferRange& slice, const Cells& values) {
    EXPECT_NE(slice.buffer, BufferRole::kInput);
    ASSERT_EQ(slice.size_bytes, static_cast<int64_t>(values.size()));
    Cells& cells = Of(slice.buffer);
    ASSERT_LE(slice.offset_bytes + slice.size_bytes, static_cast<int64_t>(cells.size()));
    std::copy(values.begin(), values.end(), cells.begin() + slice.offset_bytes);
  }
};

Cells Combined(const Cells& a, const Cells& b) {
  Cells result;
  for (size_t i = 0; i < a.size(); ++i) result.push_back(absl::StrCat("(", a[i], "+", b[i], ")"));
  return result;
}

bool Overlap(const BufferRange& a, const BufferRange& b) {
  auto place = [](const BufferRange& s) {  // input and output may be the same memory
    return s.buffer == BufferRole::kScratch ? 1 : 0;
  };
  return place(a) == place(b) && a.offset_bytes < b.offset_bytes + b.size_bytes &&
         b.offset_bytes < a.offset_bytes + a.size_bytes;
}

// `shared`: input and output are laid out alike, so that in place they coincide.
void CheckRules(const TransferSchedule& schedule, Rank self, bool shared) {
  for (const AlgorithmStep& step : schedule.steps) {
    std::map<Rank, int> sends, receives;
    int combining = 0;
    for (const SendOp& send : step.sends) {
      EXPECT_NE(send.to, self);
      EXPECT_EQ(++sends[send.to], 1);
      for (const ReceiveOp& receive : step.receives) {
        const bool comparable = shared || send.from.buffer == receive.to.buffer;
        EXPECT_FALSE(comparable && Overlap(send.from, receive.to));
      }
    }
    for (const ReceiveOp& receive : step.receives) {
      EXPECT_NE(receive.from, self);
      EXPECT_EQ(++receives[receive.from], 1);
      EXPECT_NE(receive.to.buffer, BufferRole::kInput);
      if (receive.operand) {
        ++combining;
        EXPECT_EQ(receive.operand->size_bytes, receive.to.size_bytes);
      }
    }
    EXPECT_LE(combining, 1);
  }
}

// Runs all ranks, each at its own pace, until nobody can go on.
class Simulation {
 public:
  Simulation(std::vector<TransferSchedule> schedules, std::vector<Buffers> buffers)
      : schedules_(std::move(schedules)),
        buffers_(std::move(buffers)),
        step_(schedules_.size()),
        sent_(schedules_.size()) {
    for (size_t r = 0; r < schedules_.size(); ++r)
      buffers_[r].scratch.resize(static_cast<size_t>(schedules_[r].scratch_bytes), "garbage");
  }

  void Run() {
    bool moved = true;
    while (moved) {
      moved = false;
      // Backwards: a schedule must not depend on lower ranks being first.
      for (size_t r = schedules_.size(); r-- > 0;) moved |= Advance(r);
    }
    for (size_t r = 0; r < schedules_.size(); ++r)
      EXPECT_EQ(step_[r], schedules_[r].steps.size()) << "rank " << r << " is stuck";
    for (const auto& [pair, messages] : wire_) EXPECT_TRUE(messages.empty()) << "unreceived";
  }
  Buffers& buffers(size_t rank) { return buffers_[rank]; }

 private:
  bool Advance(size_t r) {
    if (step_[r] == schedules_[r].steps.size()) return false;
    const AlgorithmStep& step = schedules_[r].steps[step_[r]];
    const int32_t self = static_cast<int32_t>(r);
    bool moved = false;
    if (!sent_[r]) {
      for (const SendOp& send : step.sends)
        wire_[{self, ToInt(send.to)}].push_back(buffers_[r].Read(send.from));
      sent_[r] = moved = true;
    }
    for (const ReceiveOp& receive : step.receives) {
      if (wire_[{ToInt(receive.from), self}].empty()) return moved;
    }
    for (const ReceiveOp& receive : step.receives) {
      auto& queue = wire_[{ToInt(receive.from), self}];
      Cells message = queue.front();
      queue.pop_front();
      EXPECT_EQ(static_cast<int64_t>(message.size()), receive.to.size_bytes);
      if (receive.operand) message = Combined(message, buffers_[r].Read(*receive.operand));
      buffers_[r].Write(receive.to, message);
    }
    for (const LocalOp& local : step.locals) {
      Cells value = buffers_[r].Read(local.first);
      if (local.second) value = Combined(value, buffers_[r].Read(*local.second));
      buffers_[r].Write(local.to, value);
    }
    ++step_[r];
    sent_[r] = false;
    return true;
  }

  std::vector<TransferSchedule> schedules_;
  std::vector<Buffers> buffers_;
  std::vector<size_t> step_;
  std::vector<bool> sent_;
  std::map<std::pair<int32_t, int32_t>, std::deque<Cells>> wire_;
};

// "r3:7" is element 7 of rank 3's input.
Cells InputOf(int32_t rank, int64_t size) {
  Cells cells;
  for (int64_t i = 0; i < size; ++i) cells.push_back(absl::StrCat("r", rank, ":", i, ";"));
  return cells;
}

// Each rank's element `index` is in `formula` exactly once, and nothing else.
void ExpectAllOnce(const std::string& formula, int32_t world_size, int64_t index) {
  for (int32_t r = 0; r < world_size; ++r) {
    const std::string part = absl::StrCat("r", r, ":", index, ";");
    const size_t at = formula.find(part);
    ASSERT_NE(at, std::string::npos) << part << " is missing in " << formula;
    EXPECT_EQ(formula.find(part, at + 1), std::string::npos) << part << " twice in " << formula;
  }
  EXPECT_EQ(std::count(formula.begin(), formula.end(), ':'), world_size) << formula;
}

void CheckAllreduce(const std::function<TransferSchedule(Rank, int32_t, int64_t, int64_t)>& make) {
  for (int32_t size = 2; size <= kMaxWorld; ++size) {
    for (int64_t elements : {0, 1, 5, 16, 37}) {
      for (bool in_place : {false, true}) {
        std::vector<TransferSchedule> schedules;
        std::vector<Buffers> buffers;
        for (int32_t r = 0; r < size; ++r) {
          schedules.push_back(make(Rank{r}, size, elements, 1));
          CheckRules(schedules.back(), Rank{r}, /*shared=*/true);
          const Cells garbage(static_cast<size_t>(elements), "garbage");
          const Cells input = InputOf(r, elements);
          buffers.push_back({input, in_place ? input : garbage, {}, in_place});
        }
        Simulation simulation(schedules, buffers);
        simulation.Run();
        const Cells& result = simulation.buffers(0).output;
        for (int64_t i = 0; i < elements; ++i)
          ExpectAllOnce(result[static_cast<size_t>(i)], size, i);
        for (int32_t r = 0; r < size; ++r) {
          Buffers& own = simulation.buffers(static_cast<size_t>(r));
          EXPECT_EQ(own.output, result) << "the same order of summation on rank " << r;
          EXPECT_EQ(own.input, InputOf(r, elements)) << "the input is never written";
        }
      }
    }
  }
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
    const size_t total = static_cast<size_t>(Hull(blocks).size_bytes);
    std::vector<TransferSchedule> schedules;
    std::vector<Buffers> buffers;
    Cells expected;
    for (int32_t r = 0; r < size; ++r) {
      schedules.push_back(RingAllgather(Rank{r}, blocks));
      CheckRules(schedules.back(), Rank{r}, /*shared=*/false);
      const Cells input = InputOf(r, blocks[static_cast<size_t>(r)].size_bytes);
      buffers.push_back({input, Cells(total, "garbage"), {}});
      expected.insert(expected.end(), input.begin(), input.end());
    }
    Simulation simulation(schedules, buffers);
    simulation.Run();
    for (int32_t r = 0; r < size; ++r)
      EXPECT_EQ(simulation.buffers(static_cast<size_t>(r)).output, expected);
  }
}

TEST(Schedules, PairwiseReduceScatterCombinesEachElementOnce) {
  for (int32_t size = 1; size <= kMaxWorld; ++size) {
    const std::vector<ByteRange> blocks = RangesOf(RaggedBlocks(size));
    const int64_t total = Hull(blocks).size_bytes;
    std::vector<TransferSchedule> schedules;
    std::vector<Buffers> buffers;
    for (int32_t r = 0; r < size; ++r) {
      schedules.push_back(PairwiseReduceScatter(Rank{r}, blocks));
      CheckRules(schedules.back(), Rank{r}, /*shared=*/false);
      const size_t own = static_cast<size_t>(blocks[static_cast<size_t>(r)].size_bytes);
      buffers.push_back({InputOf(r, total), Cells(own, "garbage"), {}});
    }
    Simulation simulation(schedules, buffers);
    simulation.Run();
    for (int32_t r = 0; r < size; ++r) {
      const ByteRange own = blocks[static_cast<size_t>(r)];
      for (int64_t i = 0; i < own.size_bytes; ++i) {
        ExpectAllOnce(simulation.buffers(static_cast<size_t>(r)).output[static_cast<size_t>(i)],
                      size, own.offset_bytes + i);
      }
    }
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

TEST(Schedules, BinomialBroadcastReachesEveryRankFromEveryRoot) {
  for (int32_t size = 1; size <= kMaxWorld; ++size) {
    for (int32_t root = 0; root < size; ++root) {
      std::vector<TransferSchedule> schedules;
      std::vector<Buffers> buffers;
      for (int32_t r = 0; r < size; ++r) {
        schedules.push_back(BinomialBroadcast(Rank{r}, size, Rank{root}, 3));
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
}

}  // namespace
}  // namespace coordd
