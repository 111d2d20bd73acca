// A generation that goes on though its members' streams have ended: coordd has slept, or a stream
// has broken. Who is known to be dead is not waited for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "server/model/process_exit.h"
#include "tests/server/support/durability_fixture.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

class CoordinatorSuspendTest : public CoordinatorDurabilityTest {
 protected:
  void SetUp() override {
    CoordinatorDurabilityTest::SetUp();
    epochs_since_ = 0;
  }
  // Rank 0 of session 1 and rank 1 of session 2.
  void Form(bool launched) {
    for (int64_t session = 1; session <= 2; ++session) {
      v1::WorkerMessage message;
      *message.mutable_join() = JoinOf(absl::StrCat("w", session));
      message.mutable_join()->mutable_limits()->set_min_workers(2);
      message.mutable_join()->mutable_limits()->set_max_workers(2);
      if (launched) message.mutable_join()->set_launch(absl::StrCat("launch", session));
      Store(Do(SessionMessage{SessionId{session}, message}));
    }
    ASSERT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
  }
  Effects Ends(int64_t session) { return Do(SessionEnded{SessionId{session}, "reset"}); }
  void Sleep() {
    ASSERT_THAT(Text(Pass(2 * options_.lease), Event::Kind::kAsleep), HasSubstr("not running"));
  }
  Effects Killed(int64_t launch, int signal = SIGKILL) {
    ExitsReported report;
    report.call = CallId{99};
    report.request.set_job("train");
    report.request.set_token("secret");
    v1::LaunchedExit& exit = *report.request.add_exits();
    exit.set_launch(absl::StrCat("launch", launch));
    exit.mutable_exit()->set_signal(signal);
    return Do(report);
  }
};

TEST_F(CoordinatorSuspendTest, WhoLostPatienceWhileCoorddSleptComesBack) {
  Form(/*launched=*/false);
  Sleep();
  const Effects suspended = Ends(2);
  EXPECT_THAT(Text(suspended, Event::Kind::kWorkerDeparted), "none");
  EXPECT_THAT(Text(suspended, Event::Kind::kJobRestored),
              HasSubstr("since coordd was not running"));
  EXPECT_THAT(Refusal(suspended), StatusIs(Code::kUnavailable, HasSubstr("takes up generation 1")));
  EXPECT_THAT(Resumed(Resume(11, 0)), IsEmpty());
  const Effects resumed = Resume(12, 1);
  EXPECT_THAT(Resumed(resumed), ElementsAre(11, 12));
  EXPECT_TRUE(resumed.persist.empty());
  EXPECT_THAT(Text(resumed, Event::Kind::kJobResumed), HasSubstr("after coordd was not running"));
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
  EXPECT_EQ(Job().generation(), 1);
}

TEST_F(CoordinatorSuspendTest, ItGoesOnWhereItWas) {
  Form(/*launched=*/false);
  Sleep();
  Ends(1);
  Resume(11, 0, Launched(2, {PlanAt(4, 1, "a"), PlanAt(6, 2, "b")}), "c0ffee", 6);
  const Effects resumed = Resume(12, 1, Launched(1, {PlanAt(4, 1, "a")}), "c0ffee", 4);
  EXPECT_THAT(Resumed(resumed), ElementsAre(11, 12));
  int plans = 0;
  for (const Outgoing& out : resumed.outgoing) {
    const auto* deliver = std::get_if<Deliver>(&out);
    if (deliver == nullptr || !deliver->message->has_plan()) continue;
    ++plans;
    EXPECT_THAT(deliver->to, ElementsAre(SessionId{12}));
    EXPECT_EQ(deliver->message->plan().batches(0).tensors(0), "b");
  }
  EXPECT_EQ(plans, 1);
}

TEST_F(CoordinatorSuspendTest, ALeaseAfterItsSleepTheEndOfAStreamIsALossAgain) {
  Form(/*launched=*/false);
  Sleep();
  for (int i = 0; i < 8; ++i) {
    PassInTurns(options_.lease / 8);
    for (int64_t session = 1; session <= 2; ++session) {
      v1::WorkerMessage message = MessageOf(Epoch{epoch_}, Generation{1});
      message.mutable_heartbeat();
      Do(SessionMessage{SessionId{session}, message});
    }
  }
  const Effects lost = Ends(2);
  EXPECT_THAT(Text(lost, Event::Kind::kWorkerDeparted), HasSubstr("rank 1"));
  EXPECT_THAT(Aborted(lost).reason(), HasSubstr("rank 1"));
}

TEST_F(CoordinatorSuspendTest, ARelayThatIsLostIsNotTheLossOfItsWorkers) {
  Form(/*launched=*/true);
  const Effects suspended = Do(StreamsLost{{SessionId{2}}, "the relay of node0 was lost"});
  EXPECT_THAT(Text(suspended, Event::Kind::kWorkerDeparted), "none");
  EXPECT_THAT(Refusal(suspended), StatusIs(Code::kUnavailable, HasSubstr("relay of node0")));
  EXPECT_THAT(Resumed(Resume(12, 1)), IsEmpty());  // by itself, or through another relay
  EXPECT_THAT(Resumed(Resume(11, 0)), ElementsAre(11, 12));
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
  EXPECT_EQ(Job().generation(), 1);
}

TEST_F(CoordinatorSuspendTest, WhoHadComeBackThroughARelayThatIsLostHasTimeToComeAgain) {
  Form(/*launched=*/false);
  Do(StreamsLost{{SessionId{1}, SessionId{2}}, "the relay of node0 was lost"});
  Resume(11, 0);
  PassInTurns(options_.resume_grace);
  ASSERT_EQ(Job().departures_size(), 0);
  Do(StreamsLost{{SessionId{11}}, "the relay of node1 was lost"});
  PassInTurns(options_.lease);
  EXPECT_EQ(Job().departures_size(), 0);
  Resume(21, 0);
  EXPECT_THAT(Resumed(Resume(12, 1)), testing::UnorderedElementsAre(12, 21));
}

TEST_F(CoordinatorSuspendTest, AWorkerThatWentBeforeItsRelayIsLost) {
  Form(/*launched=*/false);
  const Effects lost = Ends(2);
  EXPECT_THAT(Aborted(lost).reason(), HasSubstr("rank 1"));
  Do(StreamsLost{{SessionId{2}}, "the relay of node0 was lost"});
  EXPECT_EQ(Job().departures_size(), 1);
}

TEST_F(CoordinatorSuspendTest, AWorkerThatDiedWithItsRelayIsLostOnceItsLauncherSaysSo) {
  Form(/*launched=*/true);
  Do(StreamsLost{{SessionId{1}, SessionId{2}}, "the relay of node0 was lost"});
  Resume(11, 0);
  EXPECT_THAT(Aborted(Killed(2)).reason(), HasSubstr("rank 1"));
}

TEST_F(CoordinatorSuspendTest, WhoHasComeAndNotSaidWhereItIsIsLostToo) {
  Form(/*launched=*/false);
  Sleep();
  Ends(2);
  Resume(11, 0);
  v1::ResumeReport part;
  part.set_more(true);
  Resume(12, 1, part);
  const Effects ended = PassInTurns(options_.lease + options_.resume_grace);
  EXPECT_THAT(Aborted(ended).reason(), HasSubstr("rank 1 (host node0, pid 4711) was lost"));
  // As all are told: it is not of the next generation.
  EXPECT_THAT(Refusal(ended), StatusIs(Code::kFailedPrecondition, HasSubstr("did not come back")));
}

TEST_F(CoordinatorSuspendTest, WhoDoesNotComeBackIsLostWhenItsTimeIsOver) {
  Form(/*launched=*/false);
  Sleep();
  Ends(2);
  Resume(11, 0);
  const Effects ended = PassInTurns(options_.lease + options_.resume_grace);
  EXPECT_THAT(Aborted(ended).reason(), HasSubstr("rank 1 (host node0, pid 4711) was lost"));
  EXPECT_THAT(Aborted(ended).reason(), HasSubstr("after coordd was not running"));
}

TEST_F(CoordinatorSuspendTest, AMemberThatIsBackOnAnotherStreamHasNotGone) {
  Form(/*launched=*/false);
  const Effects back = Resume(12, 1);  // nothing has been heard of the end of its first one
  EXPECT_THAT(Resumed(back), IsEmpty());
  EXPECT_THAT(Text(back, Event::Kind::kJobRestored),
              HasSubstr("worker w2 had lost its connection"));
  EXPECT_THAT(Resumed(Resume(11, 0)), ElementsAre(11, 12));
  EXPECT_EQ(Job().generation(), 1);
}

TEST_F(CoordinatorSuspendTest, WhoseEarlierStreamIsReadLateComesAgain) {
  Form(/*launched=*/false);
  Sleep();
  Resume(13, 1);
  EXPECT_THAT(Refusal(Resume(12, 1)), StatusIs(Code::kUnavailable, HasSubstr("another stream")));
  EXPECT_THAT(Refusal(Resume(14, 1)), StatusIs(Code::kUnavailable, HasSubstr("another stream")));
  EXPECT_THAT(Resumed(Resume(11, 0)), ElementsAre(11, 14));
  EXPECT_EQ(Job().generation(), 1);
}

TEST_F(CoordinatorSuspendTest, WhoHadNotHeardOfTheGenerationIsTold) {
  Form(/*launched=*/false);
  v1::WorkerMessage again;
  *again.mutable_join() = JoinOf("w2");
  again.mutable_join()->mutable_limits()->set_min_workers(2);
  again.mutable_join()->mutable_limits()->set_max_workers(2);
  EXPECT_THAT(Refusal(Do(SessionMessage{SessionId{13}, again})),
              StatusIs(Code::kAlreadyExists, HasSubstr("w2")));
  Sleep();
  const Effects back = Do(SessionMessage{SessionId{14}, again});
  EXPECT_THAT(Text(back, Event::Kind::kJobRestored),
              HasSubstr("worker w2 had lost its connection"));
  const Effects resumed = Resume(11, 0);
  EXPECT_THAT(Resumed(resumed), ElementsAre(11));
  EXPECT_THAT(Announced(resumed), ElementsAre(1));
}

// Its first generation forms when coordd wakes up: nobody was a member before.
TEST_F(CoordinatorSuspendTest, WhoOnlyWaitedWhileCoorddSleptIsTold) {
  v1::WorkerMessage join;
  *join.mutable_join() = JoinOf("w1");
  join.mutable_join()->mutable_limits()->set_max_workers(1);
  const Effects joined = Do(SessionMessage{SessionId{1}, join});
  ASSERT_EQ(joined.persist.size(), 1U);
  Write(joined);
  now_ += 2 * options_.lease;
  const Effects formed = Do(Persisted{"train", joined.persist[0].generation});
  EXPECT_THAT(Announced(formed), ElementsAre(1));
  EXPECT_THAT(Text(formed, Event::Kind::kAsleep), HasSubstr("not running"));
  // It has lost its stream meanwhile, of which nothing has been heard.
  EXPECT_THAT(Announced(Do(SessionMessage{SessionId{11}, join})), ElementsAre(1));
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
}

TEST_F(CoordinatorSuspendTest, WhoSaysThatItIsAMemberAndIsNotDisturbsNobody) {
  Form(/*launched=*/false);
  EXPECT_THAT(Refusal(Resume(12, 2)), StatusIs(Code::kFailedPrecondition, HasSubstr("w3")));
  EXPECT_THAT(Refusal(Resume(13, 1, {}, "another")),
              StatusIs(Code::kFailedPrecondition, HasSubstr("w2")));
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
  EXPECT_EQ(Job().joined(), 2);
}

TEST_F(CoordinatorSuspendTest, WhoseProcessHasEndedIsNotWaitedForAfterASleep) {
  Form(/*launched=*/true);
  Sleep();
  EXPECT_THAT(Text(Ends(2), Event::Kind::kJobRestored), "none");  // its launcher may know more
  EXPECT_THAT(Text(Killed(2), Event::Kind::kJobRestored), HasSubstr("taken up anew"));
  const Effects ended = Resume(11, 0);
  EXPECT_THAT(Resumed(ended), IsEmpty());
  EXPECT_THAT(Aborted(ended).reason(),
              HasSubstr("rank 1 (host node0, pid 4711) was lost: it was killed by SIGKILL"));
  ASSERT_EQ(Aborted(ended).departures_size(), 1);
  EXPECT_EQ(Aborted(ended).departures(0).exit().signal(), SIGKILL);
}

TEST_F(CoordinatorSuspendTest, WhoseLauncherKnowsNothingComesBack) {
  Form(/*launched=*/true);
  Sleep();
  Ends(2);
  EXPECT_THAT(Text(PassInTurns(2 * kExitWait), Event::Kind::kJobRestored),
              HasSubstr("taken up anew"));
  Resume(11, 0);
  EXPECT_THAT(Resumed(Resume(12, 1)), ElementsAre(11, 12));
}

TEST_F(CoordinatorSuspendTest, WhoseProcessEndedWhileCoorddWasDeadIsNotWaitedFor) {
  Form(/*launched=*/true);
  epochs_since_ = 1;
  Restart();
  Resume(11, 0);
  const Effects ended = Killed(2);
  EXPECT_THAT(Aborted(ended).reason(),
              HasSubstr("rank 1 (host node0, pid 4711) was lost: it was killed"));
}

TEST_F(CoordinatorSuspendTest, ASleepWhileMembersComeBackLeavesThemTimeToDoSoAgain) {
  Form(/*launched=*/false);
  Restart();
  epochs_since_ = 1;
  Resume(11, 0);
  PassInTurns(options_.lease + options_.resume_grace - absl::Milliseconds(10));
  Sleep();
  Ends(11);  // it has lost patience
  EXPECT_THAT(Text(PassInTurns(options_.resume_grace / 2), Event::Kind::kWorkerDeparted), "none");
  Resume(12, 0);
  EXPECT_THAT(Resumed(Resume(13, 1)), ElementsAre(12, 13));
}

TEST_F(CoordinatorSuspendTest, ASleepRightAfterItsStartIsNotTimeToComeBack) {
  Form(/*launched=*/false);
  epochs_since_ = 1;
  Restart();
  const Effects slept = Pass(options_.lease + options_.resume_grace + absl::Seconds(1));
  EXPECT_THAT(Text(slept, Event::Kind::kAsleep), HasSubstr("not running"));
  EXPECT_THAT(Text(slept, Event::Kind::kWorkerDeparted), "none");
  Resume(11, 0);
  EXPECT_THAT(Resumed(Resume(12, 1)), ElementsAre(11, 12));
}

TEST_F(CoordinatorSuspendTest, TheEndOfOneThatIsBackCountsOnceItsStreamHasEnded) {
  Form(/*launched=*/true);
  epochs_since_ = 1;
  Restart();
  v1::WorkerMessage hello;
  *hello.mutable_join() = JoinOf("w2");
  hello.mutable_join()->mutable_resume()->set_generation(1);
  hello.mutable_join()->mutable_resume()->set_epoch(epoch_ - 1);
  hello.mutable_join()->mutable_resume()->set_rank(1);
  hello.mutable_join()->mutable_resume()->set_cluster_id("c0ffee");
  Do(SessionMessage{SessionId{12}, hello});  // its report has not come yet
  Killed(2);
  EXPECT_THAT(Aborted(Resume(11, 0)).reason(), IsEmpty());
  EXPECT_THAT(Aborted(Ends(12)).reason(), HasSubstr("it was killed by SIGKILL"));
}

TEST_F(CoordinatorSuspendTest, WhoWasEvictedDoesNotComeBack) {
  on_failure_ = v1::ON_FAILURE_CONTINUE;
  for (int64_t session = 1; session <= 3; ++session) Store(Join(session, 2, "secret", 3));
  DismissCall evict{CallId{1}, {}};
  evict.request.set_job("train");
  evict.request.set_rank(2);
  evict.request.set_action(v1::DISMISS_ACTION_EVICT);
  evict.request.set_force(true);
  ASSERT_THAT(Aborted(Do(evict)).reason(), HasSubstr("rank 2 (host node0, pid 4711) was evicted"));
  Sleep();
  Ends(1);
  // It has heard nothing of all this.
  EXPECT_THAT(
      Refusal(Resume(13, 2)),
      StatusIs(Code::kFailedPrecondition, HasSubstr("worker w3 cannot come back: it was evicted")));
  v1::ResumeReport over;
  over.set_over("generation 1 ended: rank 2 was evicted");
  Resume(11, 0, over);
  const Effects back = Resume(12, 1, over);
  EXPECT_TRUE(Aborted(back).reforms());
  ASSERT_EQ(Aborted(back).departures_size(), 1);
  EXPECT_EQ(Aborted(back).departures(0).cause(), v1::DEPARTURE_CAUSE_EVICTED);
}

// Three members, of which rank 2 is lost and the others go on.
class SuspendBetweenGenerationsTest : public CoordinatorSuspendTest {
 protected:
  void SetUp() override {
    CoordinatorSuspendTest::SetUp();
    on_failure_ = v1::ON_FAILURE_CONTINUE;
    for (int64_t session = 1; session <= 3; ++session) Store(Join(session, 2, "secret", 3));
    ASSERT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
    ASSERT_THAT(Aborted(Ends(3)).reason(), HasSubstr("rank 2 (host node0, pid 4711) was lost"));
  }
  Effects Report(int64_t session, int64_t generation = 1) {
    v1::WorkerMessage message = MessageOf(Epoch{epoch_}, Generation{generation});
    message.mutable_recovery_report();
    return Do(SessionMessage{SessionId{session}, message});
  }
  static v1::ResumeReport Over() {
    v1::ResumeReport report;
    report.set_over("generation 1 ended: rank 2 was lost");
    return report;
  }
  // Those who are left come back, are told again that it is over, and form the next one.
  void GoOn(int64_t next) {
    EXPECT_THAT(Aborted(Resume(11, 0, Over())).reason(), IsEmpty());
    const Effects back = Resume(12, 1, Over());
    EXPECT_THAT(Resumed(back), IsEmpty());
    EXPECT_TRUE(Aborted(back).reforms());
    EXPECT_THAT(Aborted(back).reason(),
                HasSubstr("generation 1 ended: rank 2 (host node0, pid 4711) was lost"));
    ASSERT_EQ(Aborted(back).departures_size(), 1);
    EXPECT_EQ(Aborted(back).departures(0).rank(), 2);
    EXPECT_THAT(Text(back, Event::Kind::kWorkerDeparted), "none");  // that is known
    Report(11);
    Report(12);
    EXPECT_THAT(Announced(Store(Pass(absl::Milliseconds(20)))), ElementsAre(next, next));
    EXPECT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
  }
};

TEST_F(SuspendBetweenGenerationsTest, WhoLostPatienceBeforeTheNextOneComesBackToTheLast) {
  Report(1);
  Sleep();
  const Effects suspended = Ends(1);  // it waits; rank 1 has not reported yet
  EXPECT_THAT(Text(suspended, Event::Kind::kWorkerDeparted), "none");
  EXPECT_THAT(Text(suspended, Event::Kind::kJobRestored),
              HasSubstr("generation 1 is taken up anew, since coordd was not running for a while: "
                        "it had 2 members"));
  EXPECT_THAT(Refusal(suspended), StatusIs(Code::kUnavailable, HasSubstr("takes up generation 1")));
  GoOn(/*next=*/2);
}

TEST_F(SuspendBetweenGenerationsTest, OneThatIsBeingStoredIsNeverAnnounced) {
  Report(1);
  Report(2);
  const Effects proposed = Pass(absl::Milliseconds(20));
  ASSERT_EQ(proposed.persist.size(), 1U);
  Write(proposed);
  Sleep();
  Ends(2);
  EXPECT_THAT(Announced(Do(Persisted{"train", Generation{2}})), IsEmpty());
  GoOn(/*next=*/3);
}

TEST_F(SuspendBetweenGenerationsTest, AMemberThatIsBackOnAnotherStreamHasNotGone) {
  Report(1);
  const Effects back = Resume(12, 1, Over());  // nothing has been heard of the end of its first one
  EXPECT_THAT(Text(back, Event::Kind::kJobRestored),
              HasSubstr("worker w2 had lost its connection"));
  EXPECT_TRUE(Aborted(Resume(11, 0, Over())).reforms());
}

TEST_F(SuspendBetweenGenerationsTest, WhoHasDepartedDoesNotComeBack) {
  EXPECT_THAT(Refusal(Resume(13, 2)),
              StatusIs(Code::kFailedPrecondition, HasSubstr("rank 2 (host node0, pid 4711)")));
  EXPECT_THAT(Text(Report(1), Event::Kind::kWorkerDeparted), "none");
}

TEST_F(SuspendBetweenGenerationsTest, ALeaseAfterItsSleepTheEndOfAStreamIsALossAgain) {
  Report(1);
  EXPECT_THAT(Text(Ends(1), Event::Kind::kWorkerDeparted), HasSubstr("w1"));
}

}  // namespace
}  // namespace coordd
