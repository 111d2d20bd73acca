// What is pending at a worker: each index says the same, whatever answers a tensor.
#include "worker/protocol/pending_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/start_time.h"
#include "tests/worker/support/state_member.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TensorSpec PendingJoin() {
  TensorSpec spec;
  spec.kind = CollectiveKind::kJoin;
  spec.name = "join";
  return spec;
}

class PendingTensorsTest : public ::testing::Test {
 protected:
  ~PendingTensorsTest() override { EXPECT_TRUE(pending_.CheckConsistency().ok()); }

  void Add(int64_t id, const TensorSpec& spec, absl::Duration timeout = kTimeout) {
    pending_.Add(TensorId{id}, {spec, kStart, kStart + timeout, false, {}});
    EXPECT_EQ(pending_.CheckConsistency().message(), "");
  }
  std::vector<std::string> Report(bool join_waits = false) {
    std::vector<std::string> names;
    for (const v1::WorkerMessage& message : pending_.Report(slots_, join_waits))
      for (const v1::TensorSpec& tensor : message.tensors_ready().tensors())
        names.push_back(tensor.name());
    EXPECT_EQ(pending_.CheckConsistency().message(), "");
    return names;
  }
  std::vector<int64_t> failed() const {
    std::vector<int64_t> ids;
    for (const WorkerEffect& effect : effects_)
      if (const auto* fail = std::get_if<FailTensor>(&effect)) ids.push_back(ToInt(fail->id));
    return ids;
  }

  SlotTable slots_;
  std::vector<WorkerEffect> effects_;
  WorkerTurn turn_{kStart, effects_};
  PendingTensors pending_;
};

TEST_F(PendingTensorsTest, ReportsEachTensorOnce) {
  Add(1, Gradient("a"));
  Add(2, Gradient("b"));
  EXPECT_EQ(pending_.unreported(), 2u);
  EXPECT_THAT(Report(), ElementsAre("a", "b"));
  EXPECT_THAT(Report(), IsEmpty());
  EXPECT_EQ(pending_.size(), 2u);
}

TEST_F(PendingTensorsTest, WhatFailsBeforeItsReportIsNotReported) {
  Add(1, Gradient("a"));
  Add(2, Gradient("b"));
  pending_.Fail(pending_.Find(ProcessSetId{}, "a"), absl::AbortedError("no"), turn_);
  EXPECT_THAT(failed(), ElementsAre(1));
  EXPECT_THAT(Report(), ElementsAre("b"));
}

TEST_F(PendingTensorsTest, TheJoinIsReportedBehindWhatCameBack) {
  Add(1, PendingJoin());
  Add(2, Gradient("a"));
  EXPECT_TRUE(pending_.has_joined());
  EXPECT_THAT(Report(/*join_waits=*/true), ElementsAre("a"));
  EXPECT_TRUE(pending_.join_is_unreported());
  EXPECT_FALSE(pending_.TakeJoinBack());
  EXPECT_THAT(Report(), ElementsAre("join"));
  EXPECT_TRUE(pending_.TakeJoinBack());
  EXPECT_THAT(Report(), ElementsAre("join"));
  pending_.Erase(pending_.Find(TensorId{1}));
  EXPECT_FALSE(pending_.has_joined());
}

TEST_F(PendingTensorsTest, AWithdrawalIsAQuestionWithADeadlineOfItsOwn) {
  Add(1, Gradient("a"), absl::Seconds(1));
  Report();
  EXPECT_THAT(pending_.DueBy(kStart), IsEmpty());
  const absl::Time late = kStart + absl::Seconds(1);
  EXPECT_THAT(pending_.DueBy(late), ElementsAre(TensorId{1}));
  const auto messages = pending_.Withdraw({TensorId{1}}, absl::DeadlineExceededError("late"), late);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_THAT(messages[0].tensors_withdrawn().names(), ElementsAre("a"));
  EXPECT_EQ(messages[0].tensors_withdrawn().reason(), "late");
  EXPECT_EQ(pending_.next_deadline(), late + kWithdrawalAnswer);
  EXPECT_EQ(pending_.WithdrawAnew(late).size(), 1u);
  pending_.FailWithdrawn(turn_);
  EXPECT_THAT(failed(), ElementsAre(1));
  EXPECT_TRUE(pending_.empty());
}

TEST_F(PendingTensorsTest, AnotherCoorddHearsAllOfThemByAge) {
  Add(2, Gradient("b"));
  Report();
  pending_.AddInOrder(TensorId{1}, {Gradient("a"), kStart, kStart + kTimeout, false, {}});
  pending_.ForgetReports();
  EXPECT_THAT(Report(), ElementsAre("a", "b"));
}

TEST_F(PendingTensorsTest, ThoseOfASetFailTogether) {
  TensorSpec other = Gradient("a");
  other.process_set = ProcessSetId{3};
  Add(1, Gradient("a"));
  Add(2, other);
  EXPECT_TRUE(pending_.Contains(ProcessSetId{3}, "a"));
  pending_.FailThose([](const TensorSpec& spec) { return ToInt(spec.process_set) == 3; },
                     absl::FailedPreconditionError("removed"), turn_);
  EXPECT_THAT(failed(), ElementsAre(2));
  pending_.FailAll(absl::AbortedError("over"), turn_);
  EXPECT_THAT(failed(), ElementsAre(2, 1));
  EXPECT_EQ(pending_.unreported(), 0u);
}

// coordd fails a tensor for all ranks, and this one submits it before it has read that.
TEST(WorkerStatePending, AFailureMayComeBeforeTheReport) {
  Member member;
  std::vector<WorkerEffect> out;
  member.state().Step(TensorsSubmitted{{{TensorId{1}, Gradient("a"), member.now() + kTimeout}}},
                      member.now(), out);
  member.Fail("a", absl::StatusCode::kDeadlineExceeded, "rank 2 did not submit it");
  EXPECT_EQ(member.failure(1).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(member.reported(), IsEmpty());
  EXPECT_EQ(member.state().unreported_tensors(), 0);
}

}  // namespace
}  // namespace coordd
