// The parts of an executor: its lanes, its fusion buffers, and who waits for it to connect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "common/base/clock.h"
#include "tests/support/status_matchers.h"
#include "worker/execute/connect_result.h"
#include "worker/execute/executor_lanes.h"
#include "worker/execute/fusion_buffer_pool.h"
#include "worker/host/loopback_backend.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;

std::unique_ptr<BatchJob> Batch(int32_t lane, int64_t sequence) {
  TensorSpec spec;
  spec.name = "a";
  spec.kind = CollectiveKind::kBarrier;
  std::vector<TensorJob> tensors(1);
  tensors[0].work = std::make_shared<Work>(std::move(spec), Clock::Real());
  return std::make_unique<BatchJob>(BatchContext{}, LaneId{lane}, sequence, std::move(tensors));
}

class ExecutorLanesTest : public ::testing::Test {
 protected:
  // Launches what `may` lets it; says what as (lane, sequence).
  std::vector<std::pair<int32_t, int64_t>> Serve(
      const std::function<bool(const ExecutorLane&)>& may) {
    std::vector<std::pair<int32_t, int64_t>> launched;
    lanes_.Serve([&](ExecutorLane& lane) {
      if (!lane.has_next() || !may(lane)) return false;
      const bool sized = lane.sized != nullptr;
      const BatchJob& next = sized ? *lane.sized : *lane.waiting.front();
      launched.emplace_back(ToInt(next.lane()), next.sequence());
      lanes_.PopNext(lane, sized);
      return true;
    });
    return launched;
  }
  static bool Always(const ExecutorLane&) { return true; }
  ExecutorLanes lanes_;
};

TEST_F(ExecutorLanesTest, TakeTurnsBehindTheOneThatWasServedLast) {
  for (int64_t sequence : {1, 2}) {
    lanes_.Push(Batch(1, sequence));
    lanes_.Push(Batch(2, sequence));
  }
  EXPECT_EQ(lanes_.to_launch(), 4);
  using Served = std::pair<int32_t, int64_t>;
  EXPECT_THAT(Serve(Always), ElementsAre(Served(1, 1), Served(2, 1), Served(1, 2), Served(2, 2)));
  EXPECT_EQ(lanes_.to_launch(), 0);
  lanes_.Push(Batch(1, 3));
  EXPECT_THAT(Serve(Always), ElementsAre(Served(1, 3)));
  lanes_.Push(Batch(1, 4));
  lanes_.Push(Batch(2, 3));
  EXPECT_THAT(Serve(Always), ElementsAre(Served(2, 3), Served(1, 4)));
}

TEST_F(ExecutorLanesTest, WhatHasItsSizesCountsAgain) {
  lanes_.Push(Batch(1, 1));
  Serve(Always);
  lanes_.PushSized(lanes_.At(LaneId{1}), Batch(1, 1));
  EXPECT_EQ(lanes_.to_launch(), 1);
  EXPECT_EQ(Serve(Always).size(), 1u);
  EXPECT_EQ(lanes_.to_launch(), 0);
}

TEST_F(ExecutorLanesTest, ALaneThatHasEndedIsForgottenWhenItIsIdle) {
  lanes_.Push(Batch(1, 1));
  lanes_.End(LaneId{1});
  lanes_.End(LaneId{2});
  std::vector<int32_t> forgotten;
  const auto forget = [&](LaneId lane) { forgotten.push_back(ToInt(lane)); };
  lanes_.ForgetIdle(forget);
  EXPECT_THAT(forgotten, ElementsAre(2));
  EXPECT_TRUE(lanes_.has_ended());
  Serve(Always);
  lanes_.ForgetIdle(forget);
  EXPECT_THAT(forgotten, ElementsAre(2, 1));
  EXPECT_FALSE(lanes_.has_ended());
  EXPECT_EQ(lanes_.Find(LaneId{1}), nullptr);
}

TEST(FusionBufferPoolTest, BuffersComeIntoBeingWhenTheyAreNeeded) {
  LoopbackBackend backend;
  FusionBufferPool pool(/*buffer_bytes=*/4096, /*most=*/2);
  EXPECT_EQ(pool.bytes(), 0);
  const int first = pool.Take(backend).value();
  EXPECT_EQ(pool.bytes(), 4096);
  EXPECT_EQ(pool.At(first).size(), 4096u);
  const int second = pool.Take(backend).value();
  EXPECT_NE(pool.At(first).data(), pool.At(second).data());
  EXPECT_EQ(pool.Take(backend).value(), FusionBufferPool::kNone);
  pool.Return(first);
  EXPECT_EQ(pool.Take(backend).value(), first);
  EXPECT_EQ(pool.bytes(), 8192);
}

TEST(ConnectResultTest, WhoWaitsHasWhatIsSet) {
  ConnectResult result;
  std::thread connects([&] { result.Set(absl::UnavailableError("no route")); });
  EXPECT_THAT(result.Await(), StatusIs(absl::StatusCode::kUnavailable, "no route"));
  connects.join();
}

}  // namespace
}  // namespace coordd
