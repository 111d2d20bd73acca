// Batches of several process sets at one executor, and of ranks that have joined.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/protocol/protocol_bounds.h"
#include "tests/worker/support/rank_executor.h"

namespace coordd {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::vector<float> FloatsOf(const TensorJob& job) {
  const auto* values = reinterpret_cast<const float*>(job.result.owned_output.get());
  return {values, values + job.result.output_bytes / 4};
}

// Two tensors, so that they are fused and need scratch memory.
std::vector<TensorJob> Pair(const std::vector<float>& input, std::vector<float>* a,
                            std::vector<float>* b) {
  std::vector<TensorJob> jobs;
  jobs.push_back(Job(Spec(CollectiveKind::kAllreduce, "a", {8}), input, a));
  jobs.push_back(Job(Spec(CollectiveKind::kAllreduce, "b", {8}), input, b));
  return jobs;
}

TEST(ExecutorSets, LanesDoNotWaitForEachOthersMemoryInACircle) {
  // Three sets of two ranks; every rank is ahead in one of its sets and behind in the other, with
  // more batches than there are fusion buffers.
  const std::vector<std::vector<int32_t>> sets = {{0, 1}, {1, 2}, {0, 2}};
  constexpr int kBatches = 5;
  RunRanks(3, [&](RankExecutor& rank, int32_t self) {
    const std::vector<float> input(8, static_cast<float>(self + 1));
    const int32_t first = self, second = (self + 2) % 3;  // sets that this rank is in
    std::vector<std::vector<float>> outputs(4 * kBatches, std::vector<float>(8));
    size_t next = 0;
    for (int32_t set : {first, second}) {
      rank.Define(set + 1, sets[static_cast<size_t>(set)]);
      for (int b = 1; b <= kBatches; ++b, next += 2)
        rank.LaunchIn(set + 1, b, Pair(input, &outputs[next], &outputs[next + 1]));
    }
    // The first set's results are taken only when the second's are there too.
    std::vector<std::unique_ptr<BatchJob>> done;
    for (int b = 0; b < 2 * kBatches; ++b) {
      done.push_back(rank.Take());
      ASSERT_THAT(done.back()->status, IsOk());
    }
    next = 0;
    for (int32_t set : {first, second}) {
      const auto& members = sets[static_cast<size_t>(set)];
      const auto sum = static_cast<float>(members[0] + members[1] + 2);
      for (int i = 0; i < 2 * kBatches; ++i) EXPECT_THAT(outputs[next++], Each(sum));
    }
  });
}

TEST(ExecutorSets, ALaneGoesOnWhileAnotherWaitsForItsRanks) {
  std::barrier quick_ones_are_through(2);
  RunRanks(2, [&](RankExecutor& rank, int32_t self) {
    rank.Define(1, {0, 1});
    const std::vector<float> input(8, 1.0f);
    std::vector<float> slow[2] = {std::vector<float>(8), std::vector<float>(8)};
    std::vector<float> quick[2] = {std::vector<float>(8), std::vector<float>(8)};
    if (self == 0) rank.Launch(1, Pair(input, &slow[0], &slow[1]));
    for (int b = 1; b <= 3; ++b) {
      rank.LaunchIn(1, b, Pair(input, &quick[0], &quick[1]));
      const auto batch = rank.Take();
      EXPECT_THAT(batch->status, IsOk());
      EXPECT_EQ(batch->lane(), LaneId{1});
    }
    quick_ones_are_through.arrive_and_wait();
    if (self == 1) rank.Launch(1, Pair(input, &slow[0], &slow[1]));
    EXPECT_EQ(rank.Take()->lane(), LaneId{0});
    EXPECT_THAT(slow[1], Each(2.0f));
  });
}

TEST(ExecutorSets, ASetMayEndAndItsLaneWithIt) {
  RunRanks(2, [](RankExecutor& rank, int32_t) {
    const std::vector<float> input(8, 1.0f);
    std::vector<float> a(8), b(8);
    for (int32_t set = 1; set <= 3; ++set) {
      rank.Define(set, {0, 1});
      rank.LaunchIn(set, 1, Pair(input, &a, &b));
      rank.executor().EndGroup(ProcessSetId{set});  // behind what was launched
      EXPECT_THAT(rank.Take()->status, IsOk());
    }
    rank.Launch(1, Pair(input, &a, &b));
    EXPECT_THAT(rank.Take()->status, IsOk());
  });
}

// --- ranks that have joined -------------------------------------------------------------------

constexpr int32_t kAbsent = 1;  // of three ranks

TensorJob Absent(TensorSpec spec) {
  TensorJob job;
  job.absent = true;
  if (spec.kind == CollectiveKind::kAllgather || spec.kind == CollectiveKind::kGather ||
      spec.kind == CollectiveKind::kAlltoall)
    spec.shape[0] = 0;
  job.work = std::make_shared<Work>(std::move(spec), Clock::Real());
  return job;
}

// Runs `count` tensors of `spec` in one batch on three ranks, of which one has joined; the others
// give `input(rank)`.
void RunWithAbsentRank(const TensorSpec& spec, int count,
                       const std::function<std::vector<float>(int32_t)>& input,
                       const std::function<void(int32_t, const TensorJob&)>& check) {
  RunRanks(3, [&](RankExecutor& rank, int32_t self) {
    const std::vector<float> values = input(self);
    std::vector<std::vector<float>> outputs(static_cast<size_t>(count), values);
    std::vector<TensorJob> jobs;
    for (int i = 0; i < count; ++i) {
      TensorSpec own = spec;
      absl::StrAppend(&own.name, i);
      const bool in_place = spec.kind == CollectiveKind::kAllreduce ||
                            spec.kind == CollectiveKind::kBroadcast ||
                            spec.kind == CollectiveKind::kReduce;
      jobs.push_back(self == kAbsent
                         ? Absent(own)
                         : Job(own, values, in_place ? &outputs[static_cast<size_t>(i)] : nullptr));
      if (spec.kind == CollectiveKind::kAlltoall && self != kAbsent) jobs.back().splits = {1, 1, 1};
    }
    rank.Launch(1, std::move(jobs));
    const auto batch = rank.Take();
    ASSERT_THAT(batch->status, IsOk()) << ToString(spec);
    if (self == kAbsent) return;
    for (const TensorJob& job : batch->tensors()) check(self, job);
  });
}

TEST(ExecutorJoin, AJoinedRankContributesTheIdentityOfEveryOp) {
  for (CollectiveKind kind : {CollectiveKind::kAllreduce, CollectiveKind::kReduce}) {
    for (int count : {1, 3}) {
      for (const auto& [op, expected] : std::vector<std::pair<ReduceOp, float>>{
               {ReduceOp::kSum, -10.0f},
               {ReduceOp::kAverage, -10.0f / 3},  // by the full size
               {ReduceOp::kMin, -6.0f},
               {ReduceOp::kMax, -4.0f},
               {ReduceOp::kProduct, 24.0f}}) {
        TensorSpec spec = Spec(kind, "t", {5});
        spec.op = op;
        spec.prescale_factor = -2.0;  // which the identity is not multiplied by
        RunWithAbsentRank(
            spec, count,
            [](int32_t self) { return std::vector<float>(5, self == 0 ? 2.0f : 3.0f); },
            [&, expected = expected](int32_t self, const TensorJob& job) {
              if (kind == CollectiveKind::kReduce && self != 0) return;
              const auto* values = reinterpret_cast<const float*>(job.output);
              for (int i = 0; i < 5; ++i) EXPECT_FLOAT_EQ(values[i], expected) << Name(spec.op);
            });
      }
    }
  }
}

TEST(ExecutorJoin, AJoinedRankGivesNoRowsAndGetsNone) {
  auto rows = [](int32_t self) { return std::vector<float>(3, static_cast<float>(self)); };
  for (int count : {1, 2}) {
    RunWithAbsentRank(Spec(CollectiveKind::kAllgather, "g", {3}), count, rows,
                      [](int32_t, const TensorJob& job) {
                        EXPECT_THAT(FloatsOf(job), ElementsAre(0, 0, 0, 2, 2, 2));
                      });
  }
  RunWithAbsentRank(Spec(CollectiveKind::kGather, "g", {3}), 1, rows,
                    [](int32_t self, const TensorJob& job) {
                      if (self != 0) return;
                      EXPECT_THAT(FloatsOf(job), ElementsAre(0, 0, 0, 2, 2, 2));
                    });
  RunWithAbsentRank(Spec(CollectiveKind::kAlltoall, "x", {3}), 1, rows,
                    [](int32_t, const TensorJob& job) {
                      EXPECT_THAT(FloatsOf(job), ElementsAre(0, 2));
                      EXPECT_THAT(job.result.received_splits, ElementsAre(1, 0, 1));
                    });
}

TEST(ExecutorJoin, AJoinedRankTakesPartInScattersAndBroadcasts) {
  for (int count : {1, 2}) {
    RunWithAbsentRank(
        Spec(CollectiveKind::kReducescatter, "s", {6}), count,
        [](int32_t self) { return std::vector<float>(6, static_cast<float>(self + 1)); },
        [](int32_t, const TensorJob& job) { EXPECT_THAT(FloatsOf(job), ElementsAre(4, 4)); });
    RunWithAbsentRank(
        Spec(CollectiveKind::kBroadcast, "b", {2}), count,
        [](int32_t self) { return std::vector<float>(2, static_cast<float>(self + 7)); },
        [](int32_t, const TensorJob& job) {
          EXPECT_EQ(reinterpret_cast<const float*>(job.output)[1], 7);
        });
  }
}

TEST(ExecutorJoin, TheEndOfAJoinSaysWhoWasLast) {
  RunRanks(3, [](RankExecutor& rank, int32_t) {
    TensorSpec spec = Spec(CollectiveKind::kJoin, kJoinName, {});
    std::vector<TensorJob> jobs(1);
    jobs[0].work = std::make_shared<Work>(spec, Clock::Real());
    rank.LaunchJoin(1, std::move(jobs), 2);
    const auto batch = rank.Take();
    ASSERT_THAT(batch->status, IsOk());
    const WorkResult& result = batch->tensors()[0].result;
    ASSERT_EQ(result.output_bytes, 4);
    EXPECT_EQ(*reinterpret_cast<const int32_t*>(result.owned_output.get()), 2);
  });
}

CollectiveArgs SumInPlace(LaneId lane, int64_t sequence, std::vector<float>& values) {
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllreduce;
  args.dtype = DataType::kFloat32;
  args.op = ReduceOp::kSum;
  args.lane = lane;
  args.sequence = sequence;
  args.group = ProcessSetId{ToInt(lane)};
  args.output = absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), values.size() * 4);
  args.input = args.output;
  return args;
}

TEST(ExecutorSets, ExchangesOfGroupsThatShareANumberRunBesideBatches) {
  // The ranks in equal places of two nodes: {0, 2} and {1, 3}, one number.
  constexpr LaneId kLane{kFirstScheduleLane + 7};
  RunRanks(4, [&](RankExecutor& rank, int32_t self) {
    const auto across =
        std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{self % 2, self % 2 + 2});
    rank.executor().DefineGroup(ProcessSetId{ToInt(kLane)}, across);
    constexpr size_t kExchanges = 20;
    std::vector<std::vector<float>> values(kExchanges,
                                           std::vector<float>(100, static_cast<float>(self)));
    BoundedQueue<absl::Status> ended(64, Clock::Real());
    const std::vector<float> input(8, 1.0f);
    std::vector<float> a(8), b(8);
    for (size_t i = 0; i < kExchanges; ++i) {
      rank.executor().LaunchExchange(
          SumInPlace(kLane, static_cast<int64_t>(i), values[i]),
          [&ended](absl::Status status) { ended.PushUnbounded(std::move(status)); });
      if (i == kExchanges / 2) rank.Launch(1, Pair(input, &a, &b));
    }
    size_t through = 0;
    while (through < kExchanges) {
      for (const absl::Status& status : ended.TakeAll(absl::InfiniteFuture())) {
        EXPECT_THAT(status, IsOk());
        ++through;
      }
    }
    for (const std::vector<float>& sum : values)
      EXPECT_THAT(sum, Each(static_cast<float>(2 * (self % 2) + 2)));
    EXPECT_THAT(rank.Take()->status, IsOk());
    EXPECT_THAT(a, Each(4.0f));
    rank.executor().EndExchanges(kLane);
  });
}

TEST(ExecutorSets, AnExchangeEndsWithTheDataPlane) {
  constexpr LaneId kLane{kFirstScheduleLane + 7};
  RunRanks(2, [&](RankExecutor& rank, int32_t self) {
    if (self == 1) return;  // never comes to it
    rank.executor().DefineGroup(
        ProcessSetId{ToInt(kLane)},
        std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{0, 1}));
    std::vector<float> values(100, 1.0f);
    std::optional<absl::Status> waiting, late;
    rank.executor().LaunchExchange(SumInPlace(kLane, 0, values),
                                   [&](absl::Status status) { waiting = std::move(status); });
    rank.executor().Stop();
    ASSERT_TRUE(waiting.has_value());
    EXPECT_EQ(waiting->code(), absl::StatusCode::kAborted) << *waiting;
    rank.executor().LaunchExchange(SumInPlace(kLane, 1, values),
                                   [&](absl::Status status) { late = std::move(status); });
    ASSERT_TRUE(late.has_value());
    EXPECT_EQ(late->code(), absl::StatusCode::kAborted) << *late;
  });
}

}  // namespace
}  // namespace coordd
