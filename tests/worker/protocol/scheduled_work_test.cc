// The schedules of one rank: what is launched without a plan, and what is pending after all.
#include "worker/protocol/scheduled_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/protocol/protocol_bounds.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/state_member.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ScheduledWorkTest : public ::testing::Test {
 protected:
  ScheduledWork::Context At(absl::Time now) {
    turn_.emplace(WorkerTurn{now, effects_});
    return {*turn_, pending_, launched_, session_};
  }
  // Each name is a batch.
  absl::Status Begin(const std::vector<std::string>& names) {
    v1::Schedule schedule;
    schedule.set_id(1);
    schedule.set_lane(kFirstScheduleLane);
    for (const std::string& name : names)
      ToProto(Gradient(name), schedule.add_batches()->add_tensors());
    return work_.OnSchedule(schedule, sets_, /*size=*/3, /*position=*/9, At(kStart));
  }
  // One more part, of a megabyte.
  absl::Status SendPart() {
    v1::Schedule part;
    part.set_id(1);
    part.set_lane(kFirstScheduleLane);
    part.set_more(true);
    ToProto(Gradient(std::string(1 << 20, 'a')), part.add_batches()->add_tensors());
    return work_.OnSchedule(part, sets_, /*size=*/3, /*position=*/9, At(kStart));
  }
  bool Submit(int64_t id, const TensorSpec& spec, absl::Time now = kStart) {
    SubmittedTensor tensor{TensorId{id}, spec, now + kTimeout};
    return work_.Take(tensor, At(now), fault_);
  }
  absl::Status Freeze() {
    v1::Freeze freeze;
    freeze.set_id(1);
    return work_.OnFreeze(freeze, At(kStart));
  }
  std::optional<ScheduledWork::Fault> Cut(int64_t position) {
    v1::Cut cut;
    cut.set_id(1);
    cut.set_position(position);
    return work_.OnCut(cut, At(kStart));
  }
  template <typename T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const WorkerEffect& effect : effects_)
      if (const T* one = std::get_if<T>(&effect)) found.push_back(*one);
    return found;
  }
  int64_t breaks() const {
    int64_t count = 0;
    for (const SendMessage& send : All<SendMessage>())
      count += send.message.has_schedule_break() ? 1 : 0;
    return count;
  }

  std::vector<WorkerEffect> effects_;
  std::optional<WorkerTurn> turn_;
  ProcessSetState sets_{Rank{0}, 3};
  PendingTensors pending_;
  LaunchedBatches launched_;
  CoordinatorSession session_{{}, Epoch{7}, 5, 1, 1, kStart};
  ScheduledWork work_;
  std::optional<ScheduledWork::Fault> fault_;
};

TEST_F(ScheduledWorkTest, PartsWithoutAnEndAreAnError) {
  for (int part = 0; part < 31; ++part) ASSERT_THAT(SendPart(), IsOk());
  EXPECT_THAT(SendPart(), StatusIs(absl::StatusCode::kInternal,
                                   HasSubstr("coordd sent schedule 1 of more than 32 MiB")));
}

TEST_F(ScheduledWorkTest, ABatchIsLaunchedWhenAllOfItIsHere) {
  ASSERT_TRUE(Begin({"a", "b"}).ok());
  EXPECT_TRUE(Submit(1, Gradient("b")));
  EXPECT_EQ(work_.held(), 1);
  EXPECT_TRUE(All<LaunchBatch>().empty());
  EXPECT_TRUE(Submit(2, Gradient("a")));
  EXPECT_EQ(All<LaunchBatch>().size(), 2u);
  EXPECT_EQ(launched_.size(), 2u);
  EXPECT_EQ(work_.held(), 0);
  EXPECT_FALSE(Submit(3, Gradient("c")));
}

TEST_F(ScheduledWorkTest, WhatWasPendingBelongsToTheScheduleThatComes) {
  pending_.Add(TensorId{1}, {Gradient("a"), kStart, kStart + kTimeout, false, {}});
  ASSERT_TRUE(Begin({"a"}).ok());
  EXPECT_TRUE(pending_.empty());
  ASSERT_EQ(All<LaunchBatch>().size(), 1u);
  EXPECT_THAT(All<LaunchBatch>()[0].tensors, ElementsAre(TensorId{1}));
}

TEST_F(ScheduledWorkTest, WhatIsHeldBehindTheCutIsPending) {
  ASSERT_TRUE(Begin({"a", "b"}).ok());
  EXPECT_TRUE(Submit(1, Gradient("b")));
  ASSERT_TRUE(Freeze().ok());
  EXPECT_TRUE(work_.AwaitsCut());
  EXPECT_EQ(work_.SetOf(1), ProcessSetId{});
  EXPECT_FALSE(Cut(0).has_value());
  EXPECT_FALSE(work_.AwaitsCut());
  EXPECT_TRUE(work_.empty());
  EXPECT_NE(pending_.Find(TensorId{1}), pending_.end());
  EXPECT_EQ(All<EndLane>().size(), 1u);
}

TEST_F(ScheduledWorkTest, BeforeTheCutAnotherTensorBreaksTheSchedule) {
  ASSERT_TRUE(Begin({"a"}).ok());
  EXPECT_TRUE(Submit(1, Gradient("a", {8})));
  EXPECT_FALSE(fault_.has_value());
  EXPECT_EQ(breaks(), 1);
}

TEST_F(ScheduledWorkTest, BehindTheFreezeItIsAFault) {
  ASSERT_TRUE(Begin({"a"}).ok());
  ASSERT_TRUE(Freeze().ok());
  EXPECT_FALSE(Cut(1).has_value());
  EXPECT_TRUE(Submit(1, Gradient("a", {8})));
  ASSERT_TRUE(fault_.has_value());
  EXPECT_EQ(fault_->why.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(fault_->tensor, "a");
  EXPECT_EQ(fault_->batch, BatchKey(LaneId{kFirstScheduleLane}, 1));
}

TEST_F(ScheduledWorkTest, ARankThatHasJoinedFillsUpToTheCut) {
  ASSERT_TRUE(Begin({"a"}).ok());
  ASSERT_TRUE(Freeze().ok());
  EXPECT_FALSE(Cut(1).has_value());
  TensorSpec join;
  join.kind = CollectiveKind::kJoin;
  join.name = "join";
  pending_.Add(TensorId{4}, {join, kStart, kStart + kTimeout, false, {}});
  work_.Fill(At(kStart));
  ASSERT_EQ(All<LaunchBatch>().size(), 1u);
  EXPECT_EQ(All<LaunchBatch>()[0].absent.size(), 1u);
  EXPECT_TRUE(work_.empty());
}

TEST_F(ScheduledWorkTest, CoorddContradictsItself) {
  EXPECT_EQ(Freeze().code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(Begin({"a"}).ok());
  EXPECT_EQ(Cut(0)->why.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Begin({"b"}).code(), absl::StatusCode::kInternal);
}

TEST_F(ScheduledWorkTest, SilenceBreaksIt) {
  ASSERT_TRUE(Begin({"a", "b"}).ok());
  EXPECT_TRUE(Submit(1, Gradient("b")));
  EXPECT_EQ(work_.NextDeadline(), kStart + kBlockedSilence);
  ASSERT_TRUE(work_.Tick(At(kStart + kBlockedSilence)).ok());
  EXPECT_THAT(work_.question(), ElementsAre(TensorId{1}));
  EXPECT_EQ(breaks(), 0);
  ASSERT_TRUE(work_.Tick(At(kStart + kScheduleSilence)).ok());
  EXPECT_EQ(breaks(), 1);
}

TEST_F(ScheduledWorkTest, WhoLeavesLaunchesNothingMore) {
  ASSERT_TRUE(Begin({"a", "b"}).ok());
  EXPECT_TRUE(Submit(1, Gradient("b")));
  work_.Leave(absl::CancelledError("bye"), At(kStart).turn);
  EXPECT_EQ(All<FailTensor>().size(), 1u);
  EXPECT_TRUE(Submit(2, Gradient("a")));
  EXPECT_TRUE(All<LaunchBatch>().empty());
}

}  // namespace
}  // namespace coordd
