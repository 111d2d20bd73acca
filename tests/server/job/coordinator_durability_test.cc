// What CoordinatorState stores before it announces it, and what it knows after a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/model/job_record.h"
#include "tests/server/support/durability_fixture.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;

TEST_F(CoordinatorDurabilityTest, AnnouncesAGenerationOnceItIsStored) {
  Join(1, 2);
  const Effects proposed = Join(2, 2);
  ASSERT_EQ(proposed.persist.size(), 1u);
  EXPECT_EQ(proposed.persist[0].generation, Generation{1});
  EXPECT_THAT(Announced(proposed), testing::IsEmpty());
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_GATHERING);
  EXPECT_THAT(Announced(Pass(absl::Minutes(3))), testing::IsEmpty());  // however slow the disk is
  const Effects stored = Store(proposed);
  EXPECT_THAT(Announced(stored), testing::ElementsAre(1, 1));
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
  // The leases start now, not when it was proposed.
  EXPECT_THAT(Text(Pass(options_.lease / 2), Event::Kind::kWorkerDeparted), "none");
}

TEST_F(CoordinatorDurabilityTest, OnlyASlowDiskIsWorthAMessage) {
  const Effects proposed = Join(1, 1);
  ASSERT_EQ(proposed.persist.size(), 1u);
  EXPECT_TRUE(proposed.outgoing.empty());
  EXPECT_TRUE(Pass(absl::Milliseconds(900)).outgoing.empty());
  const Effects slow = Pass(absl::Milliseconds(100));
  ASSERT_EQ(slow.outgoing.size(), 1u);
  EXPECT_THAT(std::get<Deliver>(slow.outgoing[0]).message->waiting().reason(),
              HasSubstr("is being stored"));
}

TEST_F(CoordinatorDurabilityTest, WhatIsStoredHasNoTokenInIt) {
  Join(1, 1, "a token that nobody may read");
  Write(Join(2, 1, "a token that nobody may read"));
  Effects proposed = Pass(absl::ZeroDuration());
  Write(proposed);
  Restart();
  Write(Join(3, 1, "a token that nobody may read"));
  for (const auto& [key, value] : disk_) EXPECT_THAT(value, Not(HasSubstr("nobody may read")));
  EXPECT_THAT(disk_, Not(testing::IsEmpty()));
}

TEST_F(CoordinatorDurabilityTest, ANumberWhoseMemberHasGoneMeanwhileIsNeverUsed) {
  Join(1, 2);
  const Effects proposed = Join(2, 2);
  Do(SessionEnded{SessionId{2}, "gone"});
  const Effects stored = Store(proposed);
  EXPECT_THAT(Announced(stored), testing::IsEmpty());
  EXPECT_THAT(Announced(Store(Join(3, 2))), testing::ElementsAre(2, 2));
}

TEST_F(CoordinatorDurabilityTest, WhoComesWhileItIsStoredWaitsForTheNextOne) {
  Join(1, 1, "secret", 3);
  const Effects proposed = Pass(options_.settling_window);
  ASSERT_EQ(proposed.persist.size(), 1u);
  Join(2, 1, "secret", 3);
  EXPECT_THAT(Announced(Store(proposed)), testing::ElementsAre(1));
  EXPECT_EQ(Job().size(), 1);
  EXPECT_EQ(Job().joined(), 2);
}

TEST_F(CoordinatorDurabilityTest, AFullDiskIsToldToThoseWhoWaitAndTriedAgain) {
  const Effects first = Join(1, 1);
  ASSERT_EQ(first.persist.size(), 1u);
  const Effects failed =
      Do(Persisted{"train", Generation{1}, absl::ResourceExhaustedError("the disk is full")});
  EXPECT_THAT(Text(failed, Event::Kind::kNotStored), HasSubstr("the disk is full"));
  EXPECT_TRUE(failed.persist.empty());
  std::string told;
  for (const Outgoing& out : Pass(absl::Seconds(1)).outgoing) {
    const auto* deliver = std::get_if<Deliver>(&out);
    if (deliver != nullptr) told = deliver->message->waiting().reason();
  }
  EXPECT_THAT(told, HasSubstr("the disk is full"));
}

TEST_F(CoordinatorDurabilityTest, RetriesWithNewNumbersAndGrowingPauses) {
  Effects proposed = Join(1, 1);
  std::vector<absl::Duration> pauses;
  for (int64_t number = 1; number <= 12; ++number) {
    ASSERT_EQ(proposed.persist.size(), 1u);
    EXPECT_EQ(proposed.persist[0].generation, Generation{number});
    Do(Persisted{"train", Generation{number}, absl::ResourceExhaustedError("full")});
    const absl::Time failed_at = now_;
    do {
      ASSERT_LT(state_->NextDeadline(), absl::InfiniteFuture());
      proposed = Pass(std::max(state_->NextDeadline(), now_) - now_);
    } while (proposed.persist.empty());
    pauses.push_back(now_ - failed_at);
  }
  EXPECT_EQ(pauses.front(), absl::Milliseconds(100));
  EXPECT_EQ(pauses.back(), absl::Seconds(10));
  EXPECT_TRUE(std::is_sorted(pauses.begin(), pauses.end()));
  EXPECT_THAT(Announced(Store(proposed)), testing::ElementsAre(13));
}

TEST_F(CoordinatorDurabilityTest, AfterAFailedSyncNothingFormsAndRunningJobsGoOn) {
  Store(Join(1, 1));
  v1::WorkerMessage other;
  *other.mutable_join() = JoinOf("w9");
  other.mutable_join()->set_job("other");
  const Effects proposed = Do(SessionMessage{SessionId{9}, other});
  const Effects settled = proposed.persist.empty() ? Pass(absl::Seconds(1)) : proposed;
  ASSERT_EQ(settled.persist.size(), 1u);
  const Effects failed = Do(Persisted{"other", Generation{1}, absl::DataLossError("sync failed")});
  EXPECT_THAT(Text(failed, Event::Kind::kNotStored), HasSubstr("no generation any more"));
  EXPECT_TRUE(Pass(absl::Seconds(5)).persist.empty());
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
}

TEST_F(CoordinatorDurabilityTest, KnowsItsJobsAfterARestart) {
  Store(Join(1, 1));
  Restart();
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_GATHERING);
  EXPECT_EQ(Job().min_workers(), 1);
  EXPECT_THAT(Refusal(Join(2, 1, "wrong")), StatusIs(Code::kUnauthenticated, HasSubstr("token")));
  EXPECT_THAT(Refusal(Join(6, 1, "")), StatusIs(Code::kUnauthenticated, HasSubstr("no token")));
  EXPECT_THAT(Refusal(Join(3, 5)), StatusIs(Code::kFailedPrecondition, HasSubstr("min_workers")));
  // Nobody else is admitted before its member had time to come back.
  EXPECT_THAT(Announced(Store(Join(4, 1))), testing::IsEmpty());
  EXPECT_THAT(Announced(Store(PassInTurns(options_.lease + options_.resume_grace))),
              testing::ElementsAre(2));
  // Who proved to have the token is the measure from now on.
  EXPECT_THAT(Refusal(Join(5, 1, "wrong")), StatusIs(Code::kUnauthenticated, HasSubstr("token")));
}

TEST_F(CoordinatorDurabilityTest, AJobWhoseMembersDoNotComeBackHasEnded) {
  Store(Join(1, 1));
  const Effects restored = Restart();
  EXPECT_THAT(Text(restored, Event::Kind::kJobRestored), HasSubstr("had 1 member, who has "));
  const absl::Duration time = options_.lease + options_.resume_grace;
  EXPECT_THAT(Text(PassInTurns(time - absl::Seconds(1)), Event::Kind::kJobEnded), "none");
  EXPECT_LE(state_->NextDeadline(), now_ + absl::Seconds(1));
  const Effects ended = Pass(absl::Seconds(1));
  EXPECT_THAT(Text(ended, Event::Kind::kWorkerDeparted), HasSubstr("did not come back"));
  EXPECT_THAT(Text(ended, Event::Kind::kJobEnded), Not("none"));
  Write(ended);
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_ENDED);
  // The name is free for others, the number is not.
  EXPECT_THAT(Announced(Store(Join(2, 1, "another token"))), testing::ElementsAre(2));
}

TEST_F(CoordinatorDurabilityTest, AGenerationGoesOnWhenAllItsMembersAreBack) {
  Join(1, 2);
  Store(Join(2, 2));
  Restart();
  EXPECT_THAT(Resumed(Resume(11, 0)), testing::IsEmpty());
  const Effects waits = Join(3, 2);  // who comes new waits for the next generation
  EXPECT_THAT(Refusal(waits), IsOk());
  const Effects resumed = Resume(12, 1);
  EXPECT_THAT(Resumed(resumed), testing::ElementsAre(11, 12));
  EXPECT_TRUE(resumed.persist.empty());
  EXPECT_THAT(Text(resumed, Event::Kind::kJobResumed), HasSubstr("all 2 ranks are back"));
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
  EXPECT_EQ(Job().generation(), 1);
}

TEST_F(CoordinatorDurabilityTest, WhoLacksAPlanThatAnotherHasHeardIsTold) {
  Join(1, 2);
  Store(Join(2, 2));
  Restart();
  Resume(11, 0, Launched(2, {PlanAt(4, 1, "a"), PlanAt(6, 2, "b")}), "c0ffee", 6);
  const Effects resumed = Resume(12, 1, Launched(1, {PlanAt(4, 1, "a")}), "c0ffee", 4);
  EXPECT_THAT(Resumed(resumed), testing::ElementsAre(11, 12));
  std::vector<std::string> told;
  for (const Outgoing& out : resumed.outgoing) {
    const auto* deliver = std::get_if<Deliver>(&out);
    if (deliver == nullptr || !deliver->message->has_plan()) continue;
    EXPECT_THAT(deliver->to, testing::ElementsAre(SessionId{12}));
    EXPECT_EQ(deliver->message->epoch(), epoch_);
    EXPECT_EQ(deliver->message->position(), 6);
    told.push_back(deliver->message->plan().batches(0).tensors(0));
  }
  EXPECT_THAT(told, testing::ElementsAre("b"));
}

TEST_F(CoordinatorDurabilityTest, RanksThatWereToldDifferentThingsCannotGoOn) {
  Join(1, 2);
  Store(Join(2, 2));
  Restart();
  Resume(11, 0, Launched(1, {PlanAt(4, 1, "a")}), "c0ffee", 4);
  const Effects ended = Resume(12, 1, Launched(1, {PlanAt(4, 1, "b")}), "c0ffee", 4);
  EXPECT_THAT(Resumed(ended), testing::IsEmpty());
  EXPECT_THAT(Aborted(ended).reason(), HasSubstr("ranks 0 and 1 were told different things"));
}

TEST_F(CoordinatorDurabilityTest, WhatWasForgottenCannotBeToldAgain) {
  Join(1, 2);
  Store(Join(2, 2));
  Restart();
  v1::ResumeReport report = Launched(2, {PlanAt(6, 2, "b")});
  report.add_forgotten()->set_position(4);
  Resume(11, 0, report, "c0ffee", 6);
  const Effects ended = Resume(12, 1, {}, "c0ffee", 0);
  EXPECT_THAT(Aborted(ended).reason(), HasSubstr("rank 1 had not received what rank 0"));
}

TEST_F(CoordinatorDurabilityTest, AReportIsNoWayToHaveOtherRanksToldAnythingElse) {
  Join(1, 2);
  Store(Join(2, 2));
  Restart();
  v1::CoordinatorMessage abort;
  abort.set_generation(1);
  abort.set_position(4);
  abort.mutable_abort()->set_reason("made up");
  Resume(11, 0, Launched(0, {abort}), "c0ffee", 4);
  const Effects ended = Resume(12, 1);
  EXPECT_THAT(Aborted(ended).reason(), HasSubstr("rank 0 has a message of another kind"));
}

TEST_F(CoordinatorDurabilityTest, AMemberThatHadNotHeardOfItsGenerationIsToldAgain) {
  Join(1, 2);
  Store(Join(2, 2));
  Restart();
  EXPECT_THAT(Announced(Join(2, 2)), testing::IsEmpty());  // worker w2, as before
  const Effects resumed = Resume(11, 0);
  EXPECT_THAT(Announced(resumed), testing::ElementsAre(1));
  EXPECT_THAT(Resumed(resumed), testing::ElementsAre(11));
}

TEST_F(CoordinatorDurabilityTest, AMemberThatDoesNotComeBackEndsTheGenerationByName) {
  Join(1, 2);
  Store(Join(2, 2));
  Restart();
  Resume(11, 0);
  const Effects ended = PassInTurns(options_.lease + options_.resume_grace);
  EXPECT_THAT(Aborted(ended).reason(),
              HasSubstr("rank 1 (host node0, pid 4711) was lost: it did not come back within 15s"));
  EXPECT_TRUE(Aborted(ended).in_flight());
  ASSERT_EQ(Aborted(ended).departures_size(), 1);
  EXPECT_EQ(Aborted(ended).departures(0).rank(), 1);
  // The other comes too late.
  EXPECT_THAT(Refusal(Resume(12, 1)),
              StatusIs(Code::kFailedPrecondition, HasSubstr("did not come back")));
}

TEST_F(CoordinatorDurabilityTest, AStreamThatBreaksBeforeAllAreBackLeavesThePlaceOpen) {
  Join(1, 2);
  Store(Join(2, 2));
  Restart();
  Resume(11, 0);
  Do(SessionEnded{SessionId{11}, "broken"});
  EXPECT_THAT(Resumed(Resume(12, 1)), testing::IsEmpty());
  EXPECT_THAT(Resumed(Resume(13, 0)), testing::ElementsAre(13, 12));
}

TEST_F(CoordinatorDurabilityTest, SaysWhyAWorkerCannotResume) {
  Join(1, 2);
  Store(Join(2, 2));
  EXPECT_THAT(Refusal(Resume(10, 7)),  // whose place it was: coordinator_suspend_test
              StatusIs(Code::kFailedPrecondition, HasSubstr("goes on without it")));
  Restart();
  EXPECT_THAT(Refusal(Resume(11, 0, {}, "another")),
              StatusIs(Code::kFailedPrecondition, HasSubstr("was in cluster another")));
  EXPECT_THAT(Refusal(Resume(12, 7)),
              StatusIs(Code::kFailedPrecondition, HasSubstr("is not rank 7")));
  v1::WorkerMessage stranger;
  *stranger.mutable_join() = JoinOf("w1");
  stranger.mutable_join()->set_token("wrong");
  stranger.mutable_join()->mutable_resume()->set_generation(1);
  const Inbound from_stranger(SessionMessage{SessionId{14}, stranger});
  EXPECT_THAT(Refusal(Do(from_stranger)), StatusIs(Code::kUnauthenticated, HasSubstr("token")));
  Resume(15, 0);
  Resume(16, 1);
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
  EXPECT_THAT(Refusal(Do(SessionMessage{SessionId{17}, stranger})),
              StatusIs(Code::kUnauthenticated, HasSubstr("token")));
  disk_.clear();
  Restart();
  EXPECT_THAT(Refusal(Resume(13, 0)),
              StatusIs(Code::kFailedPrecondition, HasSubstr("knows no job")));
}

TEST_F(CoordinatorDurabilityTest, AStopThatHandsOverEndsNoJob) {
  Store(Join(1, 1));
  const Effects stopped = Do(StopRequested{"an upgrade", absl::Minutes(1)});
  EXPECT_TRUE(stopped.persist.empty());
  EXPECT_THAT(Refusal(stopped), StatusIs(Code::kUnavailable, HasSubstr("an upgrade")));
  Restart();
  EXPECT_THAT(Resumed(Resume(11, 0)), testing::ElementsAre(11));
}

TEST_F(CoordinatorDurabilityTest, NeverUsesANumberAgain) {
  for (int64_t number = 1; number <= 6; ++number) {
    Write(PassInTurns(options_.lease + options_.resume_grace));  // nobody of those before is back
    EXPECT_THAT(Announced(Store(Join(number, 1))), testing::ElementsAre(number));
    if (number % 2 == 0) {
      Write(Leave(number, number));  // the job ends, and is known to have
      EXPECT_EQ(Job().phase(), v1::JOB_PHASE_ENDED);
    }
    if (number % 3 == 0) Write(Pass(options_.ended_job_retention + options_.lease));  // forgotten
    Restart();
  }
}

TEST_F(CoordinatorDurabilityTest, AForgottenJobLeavesItsHighestNumberBehind) {
  for (int64_t number = 1; number <= 3; ++number) {
    Store(Join(number, 1));
    Write(Leave(number, number));
  }
  EXPECT_TRUE(disk_.contains("job/train"));
  Write(Pass(options_.ended_job_retention));
  EXPECT_FALSE(disk_.contains("job/train"));
  Restart();
  EXPECT_THAT(Announced(Store(Join(9, 1))), testing::ElementsAre(4));
}

TEST_F(CoordinatorDurabilityTest, AnOrderlyStopEndsItsJobs) {
  Store(Join(1, 1));
  Write(Do(StopRequested{"the test stops it"}));
  const Effects restored = Restart();
  EXPECT_THAT(Text(restored, Event::Kind::kJobRestored), "none");
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_ENDED);
  EXPECT_THAT(Announced(Store(Join(2, 1, "another token"))), testing::ElementsAre(2));
}

TEST_F(CoordinatorDurabilityTest, AnAnswerToAnEarlierProposalChangesNothing) {
  Join(1, 2);
  const Effects first = Join(2, 2);
  Do(SessionEnded{SessionId{2}, "gone"});
  Do(Persisted{"train", Generation{1}});
  const Effects second = Join(3, 2);
  ASSERT_EQ(second.persist.size(), 1u);
  for (const Persisted& late :
       {Persisted{"train", Generation{1}}, Persisted{"train", Generation{7}},
        Persisted{"nobody", Generation{2}}}) {
    EXPECT_THAT(Announced(Do(late)), testing::IsEmpty());
  }
  EXPECT_THAT(Announced(Store(second)), testing::ElementsAre(2, 2));
}

// Nobody else waits until all is looked at; nor does it begin anew for what is said in between.
TEST_F(CoordinatorDurabilityTest, MuchThatMembersReportIsPutTogetherOverTurns) {
  Join(1, 2);
  Store(Join(2, 2));
  Restart();
  v1::ResumeReport report;
  for (int i = 0; i < 40000; ++i) {
    v1::LanePosition& lane = *report.add_lanes();
    lane.set_lane(i);
    lane.set_launched(i);
  }
  const auto turn = [this] {
    Effects effects;
    EXPECT_EQ(state_->NextDeadline(), absl::InfinitePast());
    state_->Tick(now_, effects);
    return Resumed(effects);
  };
  EXPECT_THAT(Resumed(Resume(11, 0, report)), testing::IsEmpty());
  EXPECT_THAT(Resumed(Resume(12, 1, report)), testing::IsEmpty());
  EXPECT_THAT(turn(), testing::IsEmpty());
  v1::WorkerMessage beat = MessageOf(Epoch{epoch_ - epochs_since_}, Generation{1});
  beat.mutable_heartbeat();
  EXPECT_THAT(Resumed(Do(SessionMessage{SessionId{11}, beat})), testing::IsEmpty());
  Do(SessionEnded{SessionId{12}, "reset"});
  for (int i = 0; i < 60 && state_->NextDeadline() == absl::InfinitePast(); ++i)
    EXPECT_THAT(turn(), testing::IsEmpty()) << "what was put together is freed in parts, too";
  EXPECT_GT(state_->NextDeadline(), now_);
  EXPECT_THAT(Resumed(Resume(13, 1, report)), testing::IsEmpty());
  std::vector<int64_t> resumed;
  int turns = 0;
  for (; resumed.empty(); ++turns) resumed = turn();
  EXPECT_THAT(resumed, testing::ElementsAre(11, 13));
  EXPECT_GE(turns, 5);
  EXPECT_LE(turns, 40);
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
}

}  // namespace
}  // namespace coordd
