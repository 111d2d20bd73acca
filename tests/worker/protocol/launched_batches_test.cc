// What executes at a worker, what waits for a verdict, and what others may have left behind.
#include "worker/protocol/launched_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/protocol/protocol_bounds.h"
#include "tests/support/start_time.h"
#include "tests/worker/support/state_member.h"

namespace coordd {
namespace {

constexpr LaneId kHostLane{0};
constexpr LaneId kScheduleLane{kFirstScheduleLane};

LaunchedBatch BatchOf(int64_t id, const std::string& name,
                      absl::Time deadline = kStart + kTimeout) {
  LaunchedBatch batch;
  batch.first_tensor = name;
  batch.Add(TensorId{id}, Gradient(name), deadline);
  return batch;
}

BatchDone DoneWith(LaneId lane, int64_t sequence, absl::Status status = absl::OkStatus(),
                   bool has_result = false) {
  BatchDone done;
  done.lane = lane;
  done.sequence = sequence;
  done.status = std::move(status);
  done.has_result = has_result;
  return done;
}

TEST(LaunchedBatches, ABatchThatIsNotTheNextOfItsLaneStaysWithTheCaller) {
  LaunchedBatches launched;
  LaunchedBatch batch = BatchOf(1, "a");
  EXPECT_EQ(launched.Launch({kHostLane, 2}, std::move(batch)).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(launched.empty());
  ASSERT_EQ(batch.tensors.size(), 1u);
  ASSERT_TRUE(launched.Launch({kHostLane, 1}, std::move(batch)).ok());
  EXPECT_EQ(launched.Find({kHostLane, 1})->first_tensor, "a");
  EXPECT_EQ(launched.Complete(DoneWith(kHostLane, 1), kStart).bytes, 16);
  EXPECT_EQ(launched.Find({kHostLane, 1}), nullptr);
}

TEST(LaunchedBatches, TheTensorWithTheFirstDeadlineIsOverdue) {
  LaunchedBatches launched;
  LaunchedBatch batch = BatchOf(1, "a", kStart + absl::Seconds(9));
  batch.Add(TensorId{2}, Gradient("b"), kStart + absl::Seconds(3));
  ASSERT_TRUE(launched.Launch({kHostLane, 1}, std::move(batch)).ok());
  EXPECT_EQ(launched.NextDeadline(), kStart + absl::Seconds(3));
  EXPECT_EQ(launched.TakeOverdue(kStart), nullptr);
  const auto* overdue = launched.TakeOverdue(kStart + absl::Seconds(3));
  ASSERT_NE(overdue, nullptr);
  EXPECT_EQ(overdue->second.overdue_tensor, "b");
  EXPECT_TRUE(overdue->second.overdue);
}

TEST(LaunchedBatches, TheReportSaysWhatCompletedAndWhatIsHeldAllTheSame) {
  LaunchedBatches launched;
  for (int64_t sequence = 1; sequence <= 3; ++sequence)
    ASSERT_TRUE(launched.Launch({kHostLane, sequence}, BatchOf(sequence, "a")).ok());
  launched.Complete(DoneWith(kHostLane, 1), kStart);
  launched.Complete(DoneWith(kHostLane, 3, absl::AbortedError("peer")), kStart);
  launched.Complete(DoneWith(kHostLane, 2, absl::AbortedError("peer"), /*has_result=*/true),
                    kStart);
  v1::RecoveryReport report;
  launched.Describe(report);
  ASSERT_EQ(report.lanes_size(), 1);
  EXPECT_EQ(report.lanes(0).launched(), 3);
  EXPECT_EQ(report.lanes(0).completed(), 1);
  EXPECT_EQ(report.lanes(0).held(), 2);
}

TEST(LaunchedBatches, WhatFailedHereWaitsForTheVerdict) {
  LaunchedBatches launched;
  EXPECT_FALSE(launched.awaits_verdict());
  launched.AwaitVerdict(BatchOf(4, "a").tensors);
  EXPECT_TRUE(launched.awaits_verdict());
  std::vector<WorkerEffect> effects;
  launched.FailAwaiting(absl::AbortedError("rank 2 died"), WorkerTurn{kStart, effects});
  ASSERT_EQ(effects.size(), 1u);
  EXPECT_EQ(std::get<FailTensor>(effects[0]).id, TensorId{4});
  EXPECT_FALSE(launched.awaits_verdict());
}

TEST(LaunchedBatches, OnlyWhatIsOfASchedulesCanBeLeftBehindByThoseWhoLeave) {
  LaunchedBatches launched;
  ASSERT_TRUE(launched.Launch({kHostLane, 1}, BatchOf(1, "a")).ok());
  launched.WatchSchedules(kStart);
  EXPECT_EQ(launched.left_behind_deadline(), absl::InfiniteFuture());
  ASSERT_TRUE(launched.Launch({kScheduleLane, 1}, BatchOf(2, "b")).ok());
  launched.WatchSchedules(kStart);
  EXPECT_EQ(launched.left_behind_deadline(), kStart + kLeftBehindWait);
  // Whatever completes shows that the others go on.
  const absl::Time later = kStart + absl::Seconds(2);
  launched.Complete(DoneWith(kHostLane, 1), later);
  EXPECT_FALSE(launched.TakeLeftBehind(kStart + kLeftBehindWait));
  EXPECT_TRUE(launched.TakeLeftBehind(later + kLeftBehindWait));
  EXPECT_FALSE(launched.TakeLeftBehind(later + kLeftBehindWait));
}

TEST(LaunchedBatches, WithoutCoorddAnythingCanBeLeftBehind) {
  LaunchedBatches launched;
  ASSERT_TRUE(launched.Launch({kHostLane, 1}, BatchOf(1, "a")).ok());
  launched.WatchAll(kStart);
  EXPECT_TRUE(launched.TakeLeftBehind(kStart + kLeftBehindWait));
}

}  // namespace
}  // namespace coordd
