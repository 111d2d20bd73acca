// The executor and the batches it runs, with ranks as threads over in-process memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/thread.h"
#include "common/protocol/store_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/rank_executor.h"

namespace coordd {
namespace {

using ::testing::Each;

TEST(Executor, RunsMoreBatchesThanItHasFusionBuffersFor) {
  constexpr int kBatches = 12, kTensors = 3;
  RunRanks(3, [](RankExecutor& rank, int32_t) {
    const std::vector<float> input(100, 1.0f);
    std::vector<std::vector<float>> outputs(kBatches * kTensors, std::vector<float>(100));
    for (int b = 0; b < kBatches; ++b) {
      std::vector<TensorJob> jobs;
      for (int t = 0; t < kTensors; ++t) {
        const auto index = static_cast<size_t>(b * kTensors + t);
        jobs.push_back(Job(Spec(CollectiveKind::kAllreduce, absl::StrCat("t", index), {100}), input,
                           &outputs[index]));
      }
      rank.Launch(b + 1, std::move(jobs));
    }
    for (int b = 0; b < kBatches; ++b) {
      const auto batch = rank.Take();
      EXPECT_THAT(batch->status, IsOk());
      EXPECT_EQ(batch->sequence(), b + 1);
    }
    for (const auto& output : outputs) EXPECT_THAT(output, Each(3.0f));
    EXPECT_GT(rank.executor().fusion_bytes(), 0);
  });
}

// Tensors of one group, one a batch, more than there are fusion buffers for.
std::vector<TensorJob> OfAGroup(size_t number, int32_t size, const std::vector<float>& input,
                                std::vector<float>* output) {
  TensorSpec spec = Spec(CollectiveKind::kAllreduce, absl::StrCat("g", number), {100});
  spec.group = "g";
  spec.group_size = size;
  std::vector<TensorJob> jobs;
  jobs.push_back(Job(std::move(spec), input, output));
  return jobs;
}

TEST(Executor, AGroupEndsAsAWholeWhereWhatIsInterruptedIsExecutedAgain) {
  constexpr int kBatches = 5;
  const auto body = [](RankExecutor& rank, int32_t) {
    std::vector<std::vector<float>> data(kBatches, std::vector<float>(100, 1.0f));
    for (size_t b = 0; b < kBatches; ++b)
      rank.Launch(static_cast<int64_t>(b) + 1, OfAGroup(b, kBatches, data[b], &data[b]));
    for (int b = 0; b < kBatches; ++b) {
      const auto batch = rank.Take();
      EXPECT_THAT(batch->status, IsOk());
      EXPECT_EQ(batch->sequence(), b + 1);
    }
    for (const auto& one : data) EXPECT_THAT(one, Each(2.0f));
    // The rest of the next group does not come.
    for (size_t b = 0; b < 2; ++b)
      rank.Launch(static_cast<int64_t>(b) + kBatches + 1, OfAGroup(b, kBatches, data[b], &data[b]));
    rank.executor().Stop();
    for (int b = 0; b < 2; ++b) EXPECT_FALSE(rank.Take()->status.ok());
    for (const auto& one : data) EXPECT_THAT(one, Each(2.0f));  // as it was given
  };
  RunRanks(2, body, /*confirm=*/true);
}

TEST(Executor, AnAbortEndsWhatWaitsForMemoryThatNobodyGivesBack) {
  const auto body = [](RankExecutor& rank, int32_t) {
    constexpr size_t kBatches = 4;
    std::vector<std::vector<float>> data(kBatches, std::vector<float>(100, 1.0f));
    for (size_t b = 0; b < kBatches; ++b) {
      std::vector<TensorJob> jobs;
      jobs.push_back(
          Job(Spec(CollectiveKind::kAllreduce, absl::StrCat("t", b), {100}), data[b], &data[b]));
      rank.Launch(static_cast<int64_t>(b) + 1, std::move(jobs));
    }
    // Each has a fusion buffer, and nobody takes them.
    while (rank.executor().batches() > static_cast<int64_t>(kBatches) - kFusionBuffers)
      std::this_thread::yield();
    rank.executor().Abort();
    for (size_t b = 0; b < kBatches; ++b) EXPECT_EQ(rank.Take()->status.ok(), b < kFusionBuffers);
  };
  RunRanks(2, body, /*confirm=*/true);
}

TEST(Executor, UsesNoFusionBufferForATensorAlone) {
  RunRanks(2, [](RankExecutor& rank, int32_t) {
    const std::vector<float> input(100, 2.0f);
    std::vector<float> output(100);
    rank.Launch(1, [&] {
      std::vector<TensorJob> jobs;
      jobs.push_back(Job(Spec(CollectiveKind::kAllreduce, "a", {100}), input, &output));
      return jobs;
    }());
    EXPECT_THAT(rank.Take()->status, IsOk());
    EXPECT_THAT(output, Each(4.0f));
    EXPECT_EQ(rank.executor().fusion_bytes(), 0);
  });
}

TEST(Executor, FusesMoreThanABufferHoldsInMemoryOfItsOwn) {
  // Each rank gives 2 x 200,000 floats; what is gathered is larger than the fusion buffer.
  constexpr int64_t kRows = 200'000;
  RunRanks(2, [](RankExecutor& rank, int32_t self) {
    const std::vector<float> input(kRows, static_cast<float>(self));
    std::vector<TensorJob> jobs;
    for (const char* name : {"a", "b"})
      jobs.push_back(Job(Spec(CollectiveKind::kAllgather, name, {kRows}), input, nullptr));
    rank.Launch(1, std::move(jobs));
    const auto batch = rank.Take();
    ASSERT_THAT(batch->status, IsOk());
    for (const TensorJob& tensor : batch->tensors()) {
      ASSERT_EQ(tensor.result.output_bytes, 2 * kRows * 4);
      const auto* values = reinterpret_cast<const float*>(tensor.result.owned_output.get());
      EXPECT_EQ(values[0], 0.0f);
      EXPECT_EQ(values[kRows - 1], 0.0f);
      EXPECT_EQ(values[kRows], 1.0f);
      EXPECT_EQ(values[2 * kRows - 1], 1.0f);
    }
  });
}

TEST(Executor, KeepsItsOrderWhenABatchWaitsForSizes) {
  // Gathers need two exchanges, reductions one: ranks must still launch all in one order.
  constexpr int kBatches = 30;
  RunRanks(4, [](RankExecutor& rank, int32_t self) {
    const std::vector<float> input(8, static_cast<float>(self + 1));
    std::vector<float> output(8);
    for (int b = 0; b < kBatches; ++b) {
      std::vector<TensorJob> jobs;
      if (b % 2 == 0) {
        jobs.push_back(Job(Spec(CollectiveKind::kAllgather, absl::StrCat("g", b), {self + 1}),
                           input, nullptr));
      } else {
        jobs.push_back(
            Job(Spec(CollectiveKind::kAllreduce, absl::StrCat("r", b), {8}), input, &output));
      }
      rank.Launch(b + 1, std::move(jobs));
    }
    for (int b = 0; b < kBatches; ++b) {
      const auto batch = rank.Take();
      ASSERT_THAT(batch->status, IsOk());
      if (batch->kind() == CollectiveKind::kAllgather) {
        EXPECT_EQ(batch->tensors()[0].result.output_shape[0], 1 + 2 + 3 + 4);
      }
    }
    EXPECT_THAT(output, Each(10.0f));
  });
}

TEST(Executor, AnAbortEndsWhatIsInFlightAndWhatFollows) {
  // Rank 1 never launches, so that rank 0 waits for it.
  RunRanks(2, [](RankExecutor& rank, int32_t self) {
    if (self == 1) return;
    const std::vector<float> input(8, 1.0f);
    std::vector<float> output(8);
    for (int64_t sequence : {1, 2}) {
      std::vector<TensorJob> jobs;
      jobs.push_back(Job(Spec(CollectiveKind::kAllreduce, "a", {8}), input, &output));
      rank.Launch(sequence, std::move(jobs));
    }
    rank.executor().Abort();
    for (int i = 0; i < 2; ++i) EXPECT_FALSE(rank.Take()->status.ok());
    std::vector<TensorJob> late;
    late.push_back(Job(Spec(CollectiveKind::kAllreduce, "b", {8}), input, &output));
    rank.Launch(3, std::move(late));
    EXPECT_FALSE(rank.Take()->status.ok());
  });
}

TEST(Executor, StopHandsBackEverything) {
  InProcessNetwork network(2);
  InMemoryStore store;
  // The other rank connects and then does nothing.
  std::unique_ptr<RankExecutor> other;
  std::thread connect =
      StartThread("other", [&] { other = std::make_unique<RankExecutor>(1, 2, network, store); });
  RankExecutor rank(0, 2, network, store);
  connect.join();
  const std::vector<float> input(8, 1.0f);
  std::vector<float> output(8);
  for (int64_t sequence = 1; sequence <= 20; ++sequence) {
    std::vector<TensorJob> jobs;
    jobs.push_back(Job(Spec(CollectiveKind::kAllreduce, "a", {8}), input, &output));
    rank.Launch(sequence, std::move(jobs));
  }
  rank.executor().Stop();
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(rank.Take()->status.ok());
}

}  // namespace
}  // namespace coordd
