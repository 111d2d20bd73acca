// A worker whose connection to coordd is lost while its generation goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/worker/support/state_member.h"
#include "worker/execute/worker_errors.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class DetachedTest : public ::testing::Test {
 protected:
  void Lose() { member_.Turn(StreamEnded{absl::UnavailableError("Socket closed"), stream_}); }
  // Time passes until it tries to come back; what it says then.
  v1::Join ComesBack() {
    member_.Clear();
    for (int i = 0; i < 40 && member_.All<OpenStream>().empty(); ++i)
      member_.Advance(absl::Milliseconds(100));
    const auto opened = member_.All<OpenStream>();
    const auto joins = member_.sent(v1::WorkerMessage::kJoin);
    if (opened.size() != 1 || joins.size() != 1) return {};
    stream_ = opened[0].stream;
    sequence_ = 0;
    return joins[0].join();
  }
  void Say(v1::CoordinatorMessage message, int64_t epoch = 8, int64_t generation = 1) {
    message.set_epoch(epoch);
    message.set_generation(generation);
    message.set_sequence(++sequence_);
    member_.Turn(CoordinatorSaid{std::move(message), stream_});
  }
  void SayResumed() {
    v1::CoordinatorMessage message;
    message.mutable_resumed()->set_session(5);
    Say(std::move(message));
  }
  static v1::CoordinatorMessage PlanAt(int64_t position, int64_t sequence, const char* tensor) {
    v1::CoordinatorMessage message;
    message.set_position(position);
    v1::FusedBatch& batch = *message.mutable_plan()->add_batches();
    batch.set_sequence(sequence);
    batch.add_tensors(tensor);
    return message;
  }

  // Of set 1; no ranks: it has ended.
  static v1::CoordinatorMessage ChangeAt(int64_t position, int64_t request,
                                         std::vector<int32_t> ranks) {
    v1::CoordinatorMessage message;
    message.set_position(position);
    v1::ProcessSetChange& set = *message.mutable_process_set_change();
    set.set_request(request);
    set.set_process_set(1);
    set.mutable_ranks()->Assign(ranks.begin(), ranks.end());
    return message;
  }
  // It comes back; positions of what it says that it has received.
  std::vector<int64_t> Received() {
    Lose();
    ComesBack();
    std::vector<int64_t> positions;
    for (const v1::WorkerMessage& report : member_.sent(v1::WorkerMessage::kResumeReport))
      for (const v1::CoordinatorMessage& received : report.resume_report().received())
        positions.push_back(received.position());
    return positions;
  }

  explicit DetachedTest(OnFailure on_failure = OnFailure::kEnd)
      : member_(kStart, Member::LastingOptions(on_failure)) {}

  Member member_;
  int64_t stream_ = 0;
  int64_t sequence_ = 1;
};

TEST_F(DetachedTest, GoesOnWithWhatIsPlannedAndKeepsWhatIsNew) {
  member_.Submit({Gradient("a"), Gradient("b")});
  Say(PlanAt(3, 1, "a"), 7);
  Lose();
  EXPECT_TRUE(member_.All<GenerationEnded>().empty());
  member_.Clear();
  member_.Done(1);
  member_.Submit({Gradient("c")});
  EXPECT_THAT(member_.reported(), IsEmpty());
  EXPECT_THAT(member_.state().status(), IsOk());
  const v1::Join join = ComesBack();
  EXPECT_EQ(join.worker_id(), "w0");
  EXPECT_EQ(join.resume().epoch(), 7);
  EXPECT_EQ(join.resume().position(), 3);
  EXPECT_EQ(join.resume().cluster_id(), "c0ffee");
  const auto reports = member_.sent(v1::WorkerMessage::kResumeReport);
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].resume_report().lanes(0).launched(), 1);
  member_.Clear();
  SayResumed();
  EXPECT_THAT(member_.reported(), ElementsAre("b", "c"));
  EXPECT_EQ(member_.sent(v1::WorkerMessage::kTensorsReady)[0].epoch(), 8);
  EXPECT_THAT(member_.sent(v1::WorkerMessage::kHeartbeat), SizeIs(1));
}

TEST_F(DetachedTest, TellsWhatOthersMayNotHaveHeard) {
  member_.Submit({Gradient("a"), Gradient("b")});
  Say(PlanAt(3, 1, "a"), 7);
  member_.Done(1);  // an allreduce: all have heard of it
  Say(PlanAt(5, 2, "b"), 7);
  Lose();
  ComesBack();
  const auto reports = member_.sent(v1::WorkerMessage::kResumeReport);
  ASSERT_THAT(reports, SizeIs(1));
  ASSERT_EQ(reports[0].resume_report().received_size(), 1);
  EXPECT_EQ(reports[0].resume_report().received(0).position(), 5);
  EXPECT_EQ(reports[0].resume_report().received_by(0), 0);
}

TEST_F(DetachedTest, TellsWhoWasInASetThatHasEndedWhileOthersMayLackWhatWentToIt) {
  // Of a root that needs nobody.
  TensorSpec spec = Gradient("b");
  spec.kind = CollectiveKind::kBroadcast;
  spec.op = ReduceOp::kNone;
  spec.process_set = ProcessSetId{1};
  Say(ChangeAt(1, 1, {0, 2}), 7);
  member_.Submit({spec});
  v1::CoordinatorMessage plan = PlanAt(2, 1, "b");
  plan.mutable_plan()->mutable_batches(0)->set_lane(1);
  plan.mutable_plan()->mutable_batches(0)->set_process_set(1);
  Say(plan, 7);
  member_.Turn(BatchDone{LaneId{1}, 1, absl::OkStatus(), std::nullopt});
  Say(ChangeAt(3, 2, {}), 7);
  Lose();
  ComesBack();
  ASSERT_THAT(member_.sent(v1::WorkerMessage::kResumeReport), SizeIs(1));
  const v1::ResumeReport report = member_.sent(v1::WorkerMessage::kResumeReport)[0].resume_report();
  EXPECT_THAT(report.received_by(), ElementsAre(0, 1, 0));
  ASSERT_EQ(report.process_sets_size(), 1);
  EXPECT_THAT(report.process_sets(0).ranks(), ElementsAre(0, 2));
  // Until all have heard of its end, too.
  SayResumed();
  member_.Submit({Gradient("a")});
  Say(PlanAt(4, 1, "a"));
  member_.Done(1);
  Lose();
  ComesBack();
  ASSERT_THAT(member_.sent(v1::WorkerMessage::kResumeReport), SizeIs(1));
  EXPECT_EQ(member_.sent(v1::WorkerMessage::kResumeReport)[0].resume_report().process_sets_size(),
            0);
}

TEST_F(DetachedTest, KeepsAnEndThatTheMembersHaveNotHeardUntilItIsSaidOnceMore) {
  Say(ChangeAt(1, 1, {1, 2}), 7);
  Say(ChangeAt(3, 2, {}), 7);
  EXPECT_THAT(Received(), ElementsAre(1, 3));
  v1::CoordinatorMessage resumed;
  resumed.mutable_resumed()->set_session(5);
  resumed.mutable_resumed()->add_open_ends(3);
  Say(std::move(resumed));
  member_.Submit({Gradient("a")});
  Say(PlanAt(4, 1, "a"));
  member_.Done(1);  // an allreduce, but the others do not know of the end all the same
  EXPECT_THAT(Received(), ElementsAre(3));
  SayResumed();
  Say(ChangeAt(6, 2, {}));
  EXPECT_THAT(Received(), ElementsAre(6));
  EXPECT_THAT(member_.state().status(), IsOk());
}

TEST_F(DetachedTest, HearsWhatItHasMissedBeforeItReportsAnew) {
  member_.Submit({Gradient("a"), Gradient("b")});
  Lose();
  ComesBack();
  member_.Clear();
  Say(PlanAt(3, 1, "a"));
  EXPECT_THAT(member_.All<LaunchBatch>(), SizeIs(1));
  EXPECT_THAT(member_.reported(), IsEmpty());
  SayResumed();
  EXPECT_THAT(member_.reported(), ElementsAre("b"));
}

TEST_F(DetachedTest, TriesAgainUntilTheTimeIsOver) {
  member_.Submit({Gradient("a")});
  for (int i = 0; i < 5; ++i) {
    Lose();
    EXPECT_EQ(ComesBack().resume().generation(), 1) << i;
  }
  Lose();
  member_.Advance(absl::Minutes(6));
  EXPECT_THAT(member_.failure(1), StatusIs(absl::StatusCode::kUnavailable,
                                           HasSubstr("did not come back within 300 s")));
}

TEST_F(DetachedTest, TriesOftenEnoughForAJobOfItsSize) {
  Lose();
  absl::Duration longest;
  for (int attempt = 0; attempt < 20; ++attempt) {
    absl::Duration waited;
    member_.Clear();
    while (member_.All<OpenStream>().empty() && waited < absl::Seconds(3)) {
      member_.Advance(absl::Milliseconds(10));
      waited += absl::Milliseconds(10);
    }
    longest = std::max(longest, waited);
    stream_ = member_.All<OpenStream>()[0].stream;
    Lose();
  }
  EXPECT_LE(longest, absl::Milliseconds(510));
}

// Of a member with two addresses of coordd that has just lost its stream.
void ExpectTriesOneBehindTheOther(Member& member, int64_t stream) {
  auto opens = [&](absl::Duration later) {
    member.Clear();
    member.Turn(StreamEnded{absl::UnavailableError("Socket closed"), stream});
    member.Advance(later);
    const auto opened = member.All<OpenStream>();
    if (!opened.empty()) stream = opened[0].stream;
    return !opened.empty();
  };
  EXPECT_FALSE(opens(absl::ZeroDuration())) << "a pause comes first";
  member.Advance(absl::Milliseconds(60));
  ASSERT_THAT(member.All<OpenStream>(), SizeIs(1));
  stream = member.All<OpenStream>()[0].stream;
  EXPECT_TRUE(opens(absl::ZeroDuration())) << "the other address";
  EXPECT_FALSE(opens(absl::Milliseconds(40))) << "a longer pause";
  member.Advance(absl::Milliseconds(70));
  EXPECT_THAT(member.All<OpenStream>(), SizeIs(1));
}

TEST(DetachedWithTwoAddresses, TriesOneBehindTheOtherBeforeItWaits) {
  WorkerStateOptions options = Member::LastingOptions(OnFailure::kEnd);
  options.coordinators = 2;
  Member member(kStart, options);
  ExpectTriesOneBehindTheOther(member, 0);
}

TEST(DetachedWithTwoAddresses, DoesSoInTheNextGenerationToo) {
  WorkerStateOptions options = Member::LastingOptions(OnFailure::kRaise);
  options.coordinators = 2;
  Member member(kStart, options);
  member.Abort(v1::DEPARTURE_CAUSE_CONNECTION_LOST, "was lost: its stream ended",
               /*in_flight=*/true, /*reforms=*/true);
  member.NextGeneration(/*rank=*/0, /*size=*/2, /*sets_follow=*/false, options.cluster_id);
  ExpectTriesOneBehindTheOther(member, 0);
}

TEST_F(DetachedTest, ARefusalIsFinalAndSaysWhy) {
  member_.Submit({Gradient("a")});
  Lose();
  ComesBack();
  member_.Turn(StreamEnded{absl::FailedPreconditionError("it was in cluster x"), stream_});
  EXPECT_THAT(member_.failure(1),
              StatusIs(absl::StatusCode::kAborted, AllOf(HasSubstr("does not take this rank back"),
                                                         HasSubstr("it was in cluster x"))));
}

TEST_F(DetachedTest, AnOlderEpochIsNotBelieved) {
  member_.Submit({Gradient("a")});
  Lose();
  ComesBack();
  v1::CoordinatorMessage message;
  message.mutable_resumed();
  Say(std::move(message), 6);
  EXPECT_THAT(member_.failure(1),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("coordd is in epoch 6")));
}

TEST_F(DetachedTest, WhatAnEarlierStreamOrEpochStillSaysIsNotHeard) {
  member_.Submit({Gradient("a")});
  Lose();
  ComesBack();
  SayResumed();
  member_.Clear();
  v1::CoordinatorMessage stray = PlanAt(3, 1, "a");
  stray.set_epoch(7);
  stray.set_generation(1);
  stray.set_sequence(sequence_ + 1);
  member_.Turn(CoordinatorSaid{stray, stream_});
  member_.Turn(CoordinatorSaid{stray, 0});
  member_.Turn(StreamEnded{absl::InternalError("of the first"), 0});
  EXPECT_TRUE(member_.All<LaunchBatch>().empty());
  EXPECT_THAT(member_.state().status(), IsOk());
}

TEST_F(DetachedTest, WhatWasWithdrawnMeanwhileIsWithdrawnWhenItIsBack) {
  member_.Submit({Gradient("a")}, absl::Seconds(10));
  Lose();
  ComesBack();
  member_.Advance(absl::Seconds(10));
  member_.Advance(absl::Seconds(20));  // no answer to the withdrawal can have come
  EXPECT_THAT(member_.failure(1), IsOk());
  member_.Clear();
  SayResumed();
  EXPECT_THAT(member_.reported(), ElementsAre("a"));
  EXPECT_THAT(member_.sent(v1::WorkerMessage::kTensorsWithdrawn), SizeIs(1));
}

TEST_F(DetachedTest, AnUnansweredGoodbyeIsSaidAgain) {
  member_.Turn(LeaveRequested{});
  EXPECT_THAT(member_.sent(v1::WorkerMessage::kLeave), SizeIs(1));
  Lose();
  EXPECT_TRUE(member_.All<Stopped>().empty());
  ComesBack();
  EXPECT_THAT(member_.sent(v1::WorkerMessage::kLeave), SizeIs(1));
  member_.Turn(StreamEnded{absl::OkStatus(), stream_});
  EXPECT_THAT(member_.All<Stopped>(), SizeIs(1));
}

// Of a job whose survivors form the next generation.
class DetachedSurvivorTest : public DetachedTest {
 protected:
  DetachedSurvivorTest() : DetachedTest(OnFailure::kRaise) {}

  void SayAbort(int64_t epoch, bool reforms = true) {
    v1::CoordinatorMessage message;
    message.mutable_abort()->set_in_flight(true);
    message.mutable_abort()->set_reforms(reforms);
    message.mutable_abort()->set_reason("generation 1 ended: rank 2 was lost");
    v1::Departure& departure = *message.mutable_abort()->add_departures();
    departure.set_rank(2);
    departure.set_hostname("node3");
    departure.set_pid(4711);
    Say(std::move(message), epoch);
  }
  void SayNext(int64_t epoch) {
    v1::CoordinatorMessage message;
    message.mutable_membership()->set_size(2);
    message.mutable_membership()->add_nodes()->set_nodes(1);
    message.mutable_membership()->mutable_nodes(0)->set_ranks_per_node(2);
    message.mutable_membership()->set_session(77);
    message.mutable_membership()->set_cluster_id("c0ffee");
    Say(std::move(message), epoch, /*generation=*/2);
  }
  v1::ResumeReport Report() const {
    const auto reports = member_.sent(v1::WorkerMessage::kResumeReport);
    return reports.size() == 1 ? reports[0].resume_report() : v1::ResumeReport();
  }
  size_t recovery_reports() const {
    return member_.sent(v1::WorkerMessage::kRecoveryReport).size();
  }
};

TEST_F(DetachedSurvivorTest, SaysThatItsGenerationIsOverAndReportsWhenItIsTold) {
  member_.Submit({Gradient("a"), Gradient("b")});
  Say(PlanAt(3, 1, "a"), 7);
  Lose();
  member_.Done(1, absl::UnavailableError("the peer has ended"), Rank{2});
  EXPECT_TRUE(IsGenerationChanged(member_.failure(1)));
  EXPECT_TRUE(IsGenerationChanged(member_.failure(2)));
  ASSERT_THAT(member_.All<GenerationEnded>(), SizeIs(1));
  EXPECT_FALSE(member_.All<GenerationEnded>()[0].for_good);
  EXPECT_EQ(ComesBack().resume().generation(), 1);
  EXPECT_THAT(Report().over(), HasSubstr("the peer has ended"));
  EXPECT_EQ(Report().departures_size(), 0);
  EXPECT_EQ(recovery_reports(), 0u);
  SayAbort(8);
  EXPECT_EQ(recovery_reports(), 1u);
  EXPECT_TRUE(member_.state().attached());
  SayNext(8);
  EXPECT_THAT(member_.All<EnterGeneration>(), SizeIs(1));
  EXPECT_THAT(member_.state().status(), IsOk());
  // And so on, in the new one.
  Lose();
  const v1::Join join = ComesBack();
  EXPECT_EQ(join.worker_id(), "w0");
  EXPECT_EQ(join.resume().generation(), 2);
  EXPECT_EQ(join.resume().epoch(), 8);
  EXPECT_EQ(join.resume().session(), 77);
  EXPECT_EQ(join.resume().position(), 0);
  EXPECT_EQ(Report().over(), "");
}

TEST_F(DetachedSurvivorTest, ReportsAgainToACoorddThatHasNotHeardIt) {
  member_.Submit({Gradient("a")});
  SayAbort(7);
  EXPECT_EQ(recovery_reports(), 1u);
  Lose();
  EXPECT_EQ(ComesBack().resume().generation(), 1);
  EXPECT_THAT(Report().over(), HasSubstr("rank 2 (host node3, pid 4711) was lost"));
  ASSERT_EQ(Report().departures_size(), 1);
  EXPECT_EQ(Report().departures(0).rank(), 2);
  EXPECT_EQ(recovery_reports(), 0u);
  SayAbort(8);
  EXPECT_EQ(recovery_reports(), 1u);
  SayNext(8);
  EXPECT_THAT(member_.state().status(), IsOk());
}

TEST_F(DetachedSurvivorTest, AsksAgainForAChangeOfMembersUntilItHasCome) {
  const auto asked = [this] { return member_.sent(v1::WorkerMessage::kChangeMembers).size(); };
  member_.Turn(MembersMayChange{Generation{1}});
  EXPECT_EQ(asked(), 1u);
  Lose();
  ComesBack();
  EXPECT_EQ(asked(), 0u);
  SayResumed();
  EXPECT_EQ(asked(), 1u);
  SayAbort(8);
  SayNext(8);
  Lose();
  ComesBack();
  SayResumed();
  EXPECT_EQ(asked(), 0u);
}

TEST_F(DetachedSurvivorTest, AsksForAChangeOfMembersOnceCoorddIsThere) {
  Lose();
  member_.Turn(MembersMayChange{Generation{1}});
  ComesBack();
  EXPECT_THAT(member_.sent(v1::WorkerMessage::kChangeMembers), IsEmpty());
  SayResumed();
  EXPECT_THAT(member_.sent(v1::WorkerMessage::kChangeMembers), SizeIs(1));
}

TEST_F(DetachedSurvivorTest, HearsOfANextGenerationThatHadBeenFormedAlready) {
  SayAbort(7);
  Lose();
  ComesBack();
  SayNext(8);
  EXPECT_THAT(member_.All<EnterGeneration>(), SizeIs(1));
  EXPECT_TRUE(member_.state().attached());
  EXPECT_THAT(member_.state().status(), IsOk());
  member_.Clear();
  member_.Submit({Gradient("a")}, absl::Minutes(1), Generation{2});
  EXPECT_THAT(member_.reported(), ElementsAre("a"));
  EXPECT_EQ(member_.sent(v1::WorkerMessage::kTensorsReady)[0].epoch(), 8);
}

TEST_F(DetachedSurvivorTest, TellsOfAFailureThatCameBetweenItsReportAndResumed) {
  member_.Submit({Gradient("a")});
  Say(PlanAt(3, 1, "a"), 7);
  Lose();
  ComesBack();
  EXPECT_EQ(Report().over(), "");
  member_.Done(1, absl::UnavailableError("the peer has ended"), Rank{2});
  SayResumed();
  const auto failed = member_.sent(v1::WorkerMessage::kCollectiveFailed);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_THAT(failed[0].collective_failed().detail(), HasSubstr("the peer has ended"));
  SayAbort(8);
  EXPECT_EQ(recovery_reports(), 1u);
}

TEST_F(DetachedSurvivorTest, EndsForGoodWhenItIsRefusedOrNobodyComesBack) {
  SayAbort(7);
  Lose();
  ComesBack();
  member_.Turn(StreamEnded{absl::FailedPreconditionError("generation 1 is over"), stream_});
  ASSERT_THAT(member_.All<GenerationEnded>(), SizeIs(1));
  EXPECT_TRUE(member_.All<GenerationEnded>()[0].for_good);
  EXPECT_THAT(member_.state().status(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("does not take this rank back")));
  EXPECT_FALSE(IsGenerationChanged(member_.state().status()));
}

TEST_F(DetachedSurvivorTest, WaitsForCoorddNoLongerThanItsTimeForThat) {
  SayAbort(7);
  Lose();
  member_.Advance(absl::Minutes(6));
  EXPECT_THAT(member_.state().status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("did not come back within")));
}

}  // namespace
}  // namespace coordd
