// How a generation ends and what follows it.
#include "worker/protocol/worker_succession.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"
#include "worker/execute/worker_errors.h"

namespace coordd {
namespace {

class WorkerSuccessionTest : public ::testing::Test {
 protected:
  using Phase = WorkerSuccession::Phase;

  WorkerTurn At(absl::Time now) { return {now, effects_}; }
  template <typename T>
  int Count() const {
    int count = 0;
    for (const WorkerEffect& effect : effects_) count += std::holds_alternative<T>(effect) ? 1 : 0;
    return count;
  }
  static v1::Abort Reforms() {
    v1::Abort abort;
    abort.set_reforms(true);
    abort.set_asked(true);
    return abort;
  }
  const absl::Status lost_ = absl::AbortedError("rank 2 was lost");
  std::vector<WorkerEffect> effects_;
};

TEST_F(WorkerSuccessionTest, WhatExecutesIsAbortedOnceAndTheFirstReasonStays) {
  WorkerSuccession succession(OnFailure::kEnd);
  succession.End(absl::UnavailableError("coordd stops"), /*abort=*/false, false, At(kStart));
  EXPECT_EQ(succession.phase(), Phase::kEnding);
  EXPECT_EQ(Count<AbortExecution>(), 0);
  succession.End(lost_, /*abort=*/true, false, At(kStart));
  succession.End(absl::InternalError("again"), /*abort=*/true, false, At(kStart));
  EXPECT_EQ(succession.phase(), Phase::kAborted);
  EXPECT_EQ(succession.end(), lost_);
  EXPECT_EQ(Count<AbortExecution>(), 1);
  EXPECT_EQ(Count<GenerationEnded>(), 2);
}

TEST_F(WorkerSuccessionTest, TheNextOneBeginsWithTheReasonOfTheLast) {
  WorkerSuccession succession(OnFailure::kRaise);
  succession.End(lost_, /*abort=*/true, /*followed=*/true, At(kStart));
  EXPECT_TRUE(succession.expects_next());
  EXPECT_TRUE(IsGenerationChanged(succession.end()));
  succession = succession.Next();
  EXPECT_TRUE(succession.live());
  EXPECT_THAT(succession.end(), IsOk());
  EXPECT_EQ(succession.change().message(), lost_.message());
}

TEST_F(WorkerSuccessionTest, OfOneThatContinuesTheProgramNeedNotKnow) {
  WorkerSuccession succession(OnFailure::kContinue);
  succession.Interrupt(lost_, At(kStart));
  EXPECT_TRUE(succession.aborted());
  EXPECT_THAT(succession.end(), IsOk());
  EXPECT_EQ(succession.why().message(), lost_.message());
  EXPECT_EQ(Count<GenerationEnded>(), 0);
  succession.EndForGood(lost_, At(kStart));
  EXPECT_EQ(succession.phase(), Phase::kAborted);
  EXPECT_EQ(Count<GenerationEnded>(), 1);
}

TEST_F(WorkerSuccessionTest, AGoodbyeEndsWhatLivesAlsoInTheNextOne) {
  WorkerSuccession succession(OnFailure::kContinue);
  succession.Interrupt(lost_, At(kStart));
  EXPECT_TRUE(succession.EndByGoodbye(At(kStart)));
  EXPECT_FALSE(succession.EndByGoodbye(At(kStart)));
  EXPECT_TRUE(succession.expects_next());
  EXPECT_EQ(succession.Next().phase(), Phase::kEnding);
}

TEST_F(WorkerSuccessionTest, AnAgreedAbortIsHeededWhenNothingExecutesOrAfterAWhile) {
  WorkerSuccession succession(OnFailure::kRaise);
  ASSERT_TRUE(succession.MayHold(Reforms()));
  succession.HoldAbort(Reforms(), kStart);
  EXPECT_FALSE(succession.MayHold(Reforms()));
  EXPECT_FALSE(succession.TakeHeldAbort(/*executes=*/true, kStart).has_value());
  EXPECT_EQ(succession.NextDeadline(), kStart + kAskedAbortWait);
  const auto abort = succession.TakeHeldAbort(/*executes=*/true, kStart + kAskedAbortWait);
  ASSERT_TRUE(abort.has_value());
  EXPECT_FALSE(abort->asked());  // it is not held again
  succession.HoldAbort(Reforms(), kStart);
  EXPECT_TRUE(succession.TakeHeldAbort(/*executes=*/false, kStart).has_value());
  EXPECT_EQ(succession.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(WorkerSuccessionTest, EachCoordinatorThatAsksIsToldOnce) {
  WorkerSuccession succession(OnFailure::kRaise);
  succession.OnAbort(Reforms());
  EXPECT_FALSE(succession.report_is_due());  // none follows
  succession.End(lost_, /*abort=*/true, /*followed=*/true, At(kStart));
  succession.OnAbort(Reforms());
  EXPECT_TRUE(succession.report_is_due());
  succession.NoteReported();
  succession.OnAbort(Reforms());
  EXPECT_FALSE(succession.report_is_due());
  succession.ForgetQuestion();
  EXPECT_TRUE(succession.has_reported());
  succession.OnAbort(Reforms());
  EXPECT_TRUE(succession.report_is_due());
}

}  // namespace
}  // namespace coordd
