// How a worker leaves, and who wants it to.
#include "worker/protocol/worker_leaving.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/protocol/proto_convert.h"
#include "tests/support/start_time.h"

namespace coordd {
namespace {

class WorkerLeavingTest : public ::testing::Test {
 protected:
  using Phase = WorkerLeaving::Phase;

  WorkerTurn Turn() { return {kStart, effects_}; }
  absl::Time noticed() const { return std::get<DrainNoticed>(effects_.back()).until; }
  void Notice(absl::Duration grace) {
    v1::DrainNotice notice;
    ToProto(grace, notice.mutable_grace());
    leaving_.OnDrainNotice(notice, Turn());
  }
  std::vector<WorkerEffect> effects_;
  WorkerLeaving leaving_;
};

TEST_F(WorkerLeavingTest, PhasesComeInTheirOrder) {
  EXPECT_FALSE(leaving_.leaves());
  leaving_.Advance(Phase::kSaidGoodbye);
  leaving_.Advance(Phase::kLeaves);
  EXPECT_TRUE(leaving_.said_goodbye());
  leaving_.RepeatGoodbye();
  EXPECT_EQ(leaving_.phase(), Phase::kLeaves);
  leaving_.Advance(Phase::kStopped);
  leaving_.RepeatGoodbye();
  EXPECT_TRUE(leaving_.stopped());
}

TEST_F(WorkerLeavingTest, TheProcessAsksEachCoordinatorUntilItLeaves) {
  EXPECT_FALSE(leaving_.DrainRequest(kStart).has_value());
  leaving_.AskDrain({kStart + absl::Seconds(5), "preempted"}, Turn());
  EXPECT_EQ(noticed(), kStart + absl::Seconds(5));
  const auto request = leaving_.DrainRequest(kStart + absl::Seconds(2));
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(FromProto(request->drain_request().grace()), absl::Seconds(3));
  EXPECT_EQ(request->drain_request().reason(), "preempted");
  EXPECT_TRUE(leaving_.GoodbyeMessage(/*lives=*/true).drained());
  leaving_.Advance(Phase::kLeaves);
  EXPECT_FALSE(leaving_.DrainRequest(kStart).has_value());
}

TEST_F(WorkerLeavingTest, AnotherCoordinatorSaysAgainWhomItWantsToLeave) {
  Notice(absl::Seconds(9));
  EXPECT_EQ(noticed(), kStart + absl::Seconds(9));
  leaving_.ForgetNotice(Turn());
  EXPECT_EQ(noticed(), absl::InfiniteFuture());
  EXPECT_FALSE(leaving_.GoodbyeMessage(/*lives=*/true).drained());
  // What the process itself has asked for stays.
  leaving_.AskDrain({kStart + absl::Seconds(5), "preempted"}, Turn());
  leaving_.ForgetNotice(Turn());
  EXPECT_EQ(noticed(), kStart + absl::Seconds(5));
}

TEST_F(WorkerLeavingTest, ANoticeThatIsLiftedEndsWhatTheProcessHasAskedFor) {
  leaving_.AskDrain({kStart + absl::Seconds(5), "preempted"}, Turn());
  v1::DrainNotice lifted;
  lifted.set_lifted(true);
  leaving_.OnDrainNotice(lifted, Turn());
  EXPECT_EQ(noticed(), absl::InfiniteFuture());
  EXPECT_FALSE(leaving_.DrainRequest(kStart).has_value());
}

}  // namespace
}  // namespace coordd
