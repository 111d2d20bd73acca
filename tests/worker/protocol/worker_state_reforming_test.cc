// What a member does between a generation that has lost a rank and the next one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/worker/support/state_member.h"
#include "worker/execute/worker_errors.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr v1::WorkerMessage::BodyCase kReport = v1::WorkerMessage::kRecoveryReport;

// Rank 0 of 3, where the loss of a member is not the end.
class Survivor : public Member {
 public:
  Survivor() : Member(kStart, Options(OnFailure::kRaise)) {}
  void Lose() {
    Abort(v1::DEPARTURE_CAUSE_CONNECTION_LOST, "was lost: its stream ended", /*in_flight=*/true,
          /*reforms=*/true);
  }
};

TEST(WorkerStateReforming, WhatIsPendingFailsWithTheNameOfWhoWasLost) {
  Survivor member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Plan({"a"});
  member.Lose();
  EXPECT_THAT(member.failure(2), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2")));
  EXPECT_TRUE(IsGenerationChanged(member.failure(2)));
  EXPECT_THAT(member.All<AbortExecution>(), SizeIs(1));
  ASSERT_THAT(member.All<GenerationEnded>(), SizeIs(1));
  EXPECT_FALSE(member.All<GenerationEnded>()[0].for_good);
  member.Submit({Gradient("c")});
  EXPECT_TRUE(IsGenerationChanged(member.failure(3)));
}

TEST(WorkerStateReforming, RankZeroAsksForAChangeOfMembers) {
  Survivor member;
  v1::CoordinatorMessage news = member.Message();
  news.mutable_newcomers()->set_waiting(2);
  member.Say(news);
  ASSERT_THAT(member.All<NewcomersWait>(), SizeIs(1));
  EXPECT_EQ(member.All<NewcomersWait>()[0].count, 2);
  constexpr v1::WorkerMessage::BodyCase kChange = v1::WorkerMessage::kChangeMembers;
  member.Turn(MembersMayChange{Generation{7}});  // another generation's
  EXPECT_THAT(member.sent(kChange), IsEmpty());
  member.Turn(MembersMayChange{Generation{1}});
  EXPECT_THAT(member.sent(kChange), SizeIs(1));
  // The generation has ended by then: nobody has to ask.
  member.Lose();
  member.Clear();
  member.Turn(MembersMayChange{Generation{1}});
  EXPECT_THAT(member.sent(kChange), IsEmpty());
  // In the next one somebody else is rank 0.
  member.NextGeneration(/*rank=*/1, /*size=*/2);
  EXPECT_EQ(member.All<NewcomersWait>()[0].count, 0);
  member.Turn(MembersMayChange{Generation{2}});
  EXPECT_THAT(member.sent(kChange), IsEmpty());
}

v1::CoordinatorMessage Notice(Survivor& member, absl::Duration grace) {
  v1::CoordinatorMessage message = member.Message();
  ToProto(grace, message.mutable_drain_notice()->mutable_grace());
  return message;
}
v1::CoordinatorMessage AskedAbort(Survivor& member) {
  v1::CoordinatorMessage message = member.Message();
  message.mutable_abort()->set_in_flight(true);
  message.mutable_abort()->set_reforms(true);
  message.mutable_abort()->set_asked(true);
  message.mutable_abort()->set_reason("rank 1 was drained");
  return message;
}

TEST(WorkerStateReforming, OneThatIsAskedToLeaveSaysSoInItsGoodbye) {
  Survivor member;
  member.Say(Notice(member, absl::Seconds(30)));
  ASSERT_THAT(member.All<DrainNoticed>(), SizeIs(1));
  EXPECT_EQ(member.All<DrainNoticed>()[0].until, member.now() + absl::Seconds(30));
  EXPECT_THAT(member.state().status(), IsOk());
  member.Turn(LeaveRequested{});
  ASSERT_THAT(member.sent(v1::WorkerMessage::kLeave), SizeIs(1));
  EXPECT_TRUE(member.sent(v1::WorkerMessage::kLeave)[0].leave().drained());
}

TEST(WorkerStateReforming, OneThatMayStayAfterAllSaysAnOrdinaryGoodbye) {
  Survivor member;
  member.Say(Notice(member, absl::Seconds(30)));
  v1::CoordinatorMessage lifted = member.Message();
  lifted.mutable_drain_notice()->set_lifted(true);
  member.Say(lifted);
  EXPECT_EQ(member.All<DrainNoticed>().back().until, absl::InfiniteFuture());
  member.Turn(LeaveRequested{});
  EXPECT_FALSE(member.sent(v1::WorkerMessage::kLeave)[0].leave().drained());
}

TEST(WorkerStateReforming, AProcessThatHasToEndAsksCoorddAndKnowsItAtOnce) {
  Survivor member;
  constexpr v1::WorkerMessage::BodyCase kAsks = v1::WorkerMessage::kDrainRequest;
  member.Turn(DrainAsked{member.now() + absl::Seconds(20), "SIGTERM"});
  ASSERT_THAT(member.sent(kAsks), SizeIs(1));
  EXPECT_EQ(member.sent(kAsks)[0].drain_request().reason(), "SIGTERM");
  EXPECT_EQ(FromProto(member.sent(kAsks)[0].drain_request().grace()), absl::Seconds(20));
  EXPECT_EQ(member.All<DrainNoticed>()[0].until, member.now() + absl::Seconds(20));
  // It does not get longer by asking again, and is said again in each generation.
  member.Turn(DrainAsked{member.now() + absl::Seconds(90), "SIGTERM"});
  EXPECT_EQ(member.All<DrainNoticed>()[1].until, member.now() + absl::Seconds(20));
  member.Lose();
  member.Clear();
  member.NextGeneration(/*rank=*/0, /*size=*/2);
  EXPECT_THAT(member.sent(kAsks), SizeIs(1));
}

TEST(WorkerStateReforming, WhereALossIsTheEndNobodyAsksToLeave) {
  Member member;
  member.Turn(DrainAsked{member.now() + absl::Seconds(20), "SIGTERM"});
  EXPECT_THAT(member.sent(v1::WorkerMessage::kDrainRequest), IsEmpty());
  EXPECT_THAT(member.All<DrainNoticed>(), IsEmpty());
}

TEST(WorkerStateReforming, WhatExecutesWhenMembersHaveAgreedOnAChangeCompletes) {
  Survivor member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Plan({"a"});
  member.Say(AskedAbort(member));
  EXPECT_THAT(member.All<AbortExecution>(), IsEmpty());
  EXPECT_THAT(member.All<GenerationEnded>(), IsEmpty());
  EXPECT_THAT(member.sent(kReport), IsEmpty());
  member.Done(1);
  EXPECT_THAT(member.failure(1), IsOk());
  EXPECT_TRUE(IsGenerationChanged(member.failure(2)));
  EXPECT_THAT(member.All<GenerationEnded>(), SizeIs(1));
  EXPECT_THAT(member.sent(kReport), SizeIs(1));
}

TEST(WorkerStateReforming, WhatOthersHaveNotAgreedOnIsAbortedAfterAMoment) {
  Survivor member;
  member.Submit({Gradient("a")});
  member.Plan({"a"});
  member.Say(AskedAbort(member));
  EXPECT_LE(member.state().NextDeadline(), member.now() + kAskedAbortWait);
  member.Advance(kAskedAbortWait);
  EXPECT_THAT(member.All<AbortExecution>(), SizeIs(1));
  member.Done(1, absl::AbortedError("stopped"));
  EXPECT_TRUE(IsGenerationChanged(member.failure(1)));
  EXPECT_THAT(member.sent(kReport), SizeIs(1));
}

TEST(WorkerStateReforming, ALossMeanwhileWaitsForNobody) {
  Survivor member;
  member.Submit({Gradient("a")});
  member.Plan({"a"});
  member.Say(AskedAbort(member));
  member.Lose();
  EXPECT_THAT(member.All<AbortExecution>(), SizeIs(1));
}

TEST(WorkerStateReforming, ReportsOnceNothingExecutesAnyMore) {
  Survivor member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Plan({"a"});
  member.Plan({"b"});
  member.Done(1);
  member.Lose();
  EXPECT_THAT(member.sent(kReport), IsEmpty());
  member.Done(2, absl::AbortedError("stopped"));
  ASSERT_THAT(member.sent(kReport), SizeIs(1));
  ASSERT_THAT(member.sent(kReport)[0].recovery_report().lanes(), SizeIs(1));
  EXPECT_EQ(member.sent(kReport)[0].recovery_report().lanes(0).launched(), 2);
  EXPECT_EQ(member.sent(kReport)[0].recovery_report().lanes(0).completed(), 1);
  EXPECT_TRUE(IsGenerationChanged(member.failure(2)));
  member.Clear();
  member.Advance(absl::Seconds(2));
  EXPECT_THAT(member.sent(kReport), IsEmpty());
  EXPECT_THAT(member.sent(v1::WorkerMessage::kHeartbeat), SizeIs(1));
}

TEST(WorkerStateReforming, AThreadThatEndsTheLastBatchWakesTheOneThatReports) {
  Survivor member;
  member.Submit({Gradient("a")});
  member.Plan({"a"});
  member.Lose();
  std::vector<WorkerEffect> effects;
  member.state().Step(BatchDone{LaneId{0}, 1, absl::OkStatus(), {}}, member.now(), effects);
  EXPECT_TRUE(member.state().turn_due());
}

TEST(WorkerStateReforming, GoesOnInTheNextGeneration) {
  Survivor member;
  member.Submit({Gradient("a")});
  member.Plan({"a"});
  member.Lose();
  member.Done(1, absl::AbortedError("stopped"));
  member.Clear();
  member.NextGeneration(/*rank=*/1, /*size=*/2);
  ASSERT_THAT(member.All<EnterGeneration>(), SizeIs(1));
  EXPECT_THAT(member.state().status(), IsOk());
  member.Submit({Gradient("a")}, kTimeout, Generation{2});
  ASSERT_THAT(member.reported(), ElementsAre("a"));
  EXPECT_EQ(member.sent(v1::WorkerMessage::kTensorsReady)[0].generation(), 2);
  member.Plan({"a"});
  ASSERT_THAT(member.All<LaunchBatch>(), SizeIs(1));
  EXPECT_EQ(member.All<LaunchBatch>()[0].sequence, 1);
}

TEST(WorkerStateReforming, WhatWasSubmittedForTheOldGenerationFailsInTheNew) {
  Survivor member;
  member.Lose();
  member.NextGeneration(0, 2);
  member.Submit({Gradient("a")}, kTimeout, Generation{1});
  EXPECT_THAT(member.failure(1), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2")));
  EXPECT_TRUE(IsGenerationChanged(member.failure(1)));
  EXPECT_THAT(member.reported(), IsEmpty());
}

TEST(WorkerStateReforming, ItsOwnFailureIsToldAndWaitsForWhatFollows) {
  Survivor member;
  member.Submit({Gradient("a")});
  member.Plan({"a"});
  member.Done(1, absl::UnavailableError("rank 2: gone"), Rank{2});
  EXPECT_THAT(member.sent(v1::WorkerMessage::kCollectiveFailed), SizeIs(1));
  EXPECT_THAT(member.failure(1), IsOk());
  member.Lose();
  EXPECT_THAT(member.failure(1), StatusIs(absl::StatusCode::kAborted, HasSubstr("pid 4711")));
  EXPECT_THAT(member.sent(kReport), SizeIs(1));
}

TEST(WorkerStateReforming, ADataPlaneThatDoesNotConnectIsToldToo) {
  Survivor member;
  member.Lose();
  member.NextGeneration(0, 2);
  member.Turn(ConnectFailed{Generation{1}, absl::UnavailableError("late news"), {}});
  EXPECT_THAT(member.sent(v1::WorkerMessage::kCollectiveFailed), IsEmpty());
  member.Turn(
      ConnectFailed{Generation{2}, absl::UnavailableError("rank 1: gone"), Suspect{Rank{1}}});
  ASSERT_THAT(member.sent(v1::WorkerMessage::kCollectiveFailed), SizeIs(1));
  EXPECT_EQ(member.sent(v1::WorkerMessage::kCollectiveFailed)[0].collective_failed().suspect_rank(),
            1);
  member.Clear();
  member.Lose();
  EXPECT_THAT(member.sent(kReport), SizeIs(1));
  member.NextGeneration(0, 1);
  EXPECT_THAT(member.state().status(), IsOk());
}

TEST(WorkerStateReforming, AGoodbyeIsTheEnd) {
  Survivor member;
  member.Abort(v1::DEPARTURE_CAUSE_LEFT, "left", /*in_flight=*/false);
  ASSERT_THAT(member.All<GenerationEnded>(), SizeIs(1));
  EXPECT_TRUE(member.All<GenerationEnded>()[0].for_good);
  EXPECT_FALSE(IsGenerationChanged(member.state().status()));
  EXPECT_THAT(member.sent(kReport), IsEmpty());
}

TEST(WorkerStateReforming, TheEndOfTheStreamWhileItWaitsIsTheEnd) {
  Survivor member;
  member.Lose();
  member.Clear();
  member.Turn(StreamEnded{absl::DeadlineExceededError("no generation has followed within 10m")});
  ASSERT_THAT(member.All<GenerationEnded>(), SizeIs(1));
  EXPECT_TRUE(member.All<GenerationEnded>()[0].for_good);
  EXPECT_THAT(member.state().status(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("no generation has followed")));
}

TEST(WorkerStateReforming, MayLeaveWhileItWaits) {
  Survivor member;
  member.Lose();
  member.Clear();
  member.Turn(LeaveRequested{});
  EXPECT_THAT(member.sent(v1::WorkerMessage::kLeave), SizeIs(1));
  member.NextGeneration(0, 2);  // it crossed the goodbye
  EXPECT_THAT(member.All<EnterGeneration>(), IsEmpty());
  EXPECT_THAT(member.sent(v1::WorkerMessage::kCollectiveFailed), IsEmpty());
}

TEST(WorkerStateReforming, AMembershipBeforeItsReportBreaksTheProtocol) {
  Survivor member;
  member.Submit({Gradient("a")});
  member.Plan({"a"});
  member.Lose();
  member.NextGeneration(0, 2);
  EXPECT_THAT(member.All<EnterGeneration>(), IsEmpty());
  EXPECT_THAT(member.sent(v1::WorkerMessage::kCollectiveFailed), SizeIs(1));
}

// Rank 0 of 3, whose program need not know of a loss.
class Continuer : public Member {
 public:
  Continuer() : Member(kStart, Options(OnFailure::kContinue)) {}
  void Lose() {
    Abort(v1::DEPARTURE_CAUSE_CONNECTION_LOST, "was lost: its stream ended", /*in_flight=*/true,
          /*reforms=*/true);
  }
  void Interrupt(int64_t sequence, bool has_result = false) {
    BatchDone done{LaneId{0}, sequence, absl::AbortedError("stopped"), std::nullopt};
    done.has_result = has_result;
    Turn(std::move(done));
  }
  v1::LaneReport report() const { return sent(kReport).at(0).recovery_report().lanes(0); }
  void TakeBack(int64_t id, const TensorSpec& spec) {
    TensorsSubmitted again;
    again.again = true;
    again.tensors.push_back({TensorId{id}, spec, now() + kTimeout});
    Turn(std::move(again));
  }
};

TEST(WorkerStateContinuing, WhatIsPendingIsReportedAnewInTheNextGeneration) {
  Continuer member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Lose();
  member.Submit({Gradient("c")});
  EXPECT_THAT(member.All<FailTensor>(), IsEmpty());
  EXPECT_THAT(member.All<GenerationEnded>(), IsEmpty());
  EXPECT_THAT(member.sent(kReport), SizeIs(1));
  member.Clear();
  member.NextGeneration(0, 2);
  EXPECT_THAT(member.reported(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(member.sent(v1::WorkerMessage::kTensorsReady)[0].generation(), 2);
}

TEST(WorkerStateContinuing, WhatWasInterruptedComesBackInItsOldOrder) {
  Continuer member;
  member.Submit({Gradient("a"), Gradient("b"), Gradient("c")});
  member.Plan({"b"});
  member.Plan({"a"});
  member.Done(1);
  member.Lose();
  member.Interrupt(2, /*has_result=*/true);
  EXPECT_EQ(member.report().completed(), 1);
  EXPECT_EQ(member.report().held(), 2);
  EXPECT_EQ(member.report().launched(), 2);
  EXPECT_THAT(member.All<FailTensor>(), IsEmpty());
  member.Clear();
  member.NextGeneration(0, 2);
  EXPECT_THAT(member.reported(), ElementsAre("c"));
  member.TakeBack(1, Gradient("a"));
  EXPECT_THAT(member.reported(), ElementsAre("c", "a"));
}

TEST(WorkerStateContinuing, ADataPlaneThatNoticedFirstLosesNothing) {
  Continuer member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Plan({"a"});
  member.Plan({"b"});
  member.Interrupt(1);
  EXPECT_THAT(member.sent(v1::WorkerMessage::kCollectiveFailed), SizeIs(1));
  member.Lose();
  EXPECT_THAT(member.sent(kReport), IsEmpty());
  member.Interrupt(2);
  EXPECT_EQ(member.report().completed(), 0);
  EXPECT_EQ(member.report().held(), 0);
  EXPECT_THAT(member.All<FailTensor>(), IsEmpty());
}

TensorSpec TensorOf(CollectiveKind kind, const std::string& name) {
  TensorSpec spec = Gradient(name);
  spec.kind = kind;
  spec.op = Reduces(kind) ? ReduceOp::kSum : ReduceOp::kNone;
  spec.root_rank = 0;
  return spec;
}

// Also with a root that is there still: the ranks that have not submitted it cannot know.
TEST(WorkerStateContinuing, WhatNamesRanksFailsOnceTheNewOnesAreKnown) {
  Continuer member;
  member.Submit({TensorOf(CollectiveKind::kAlltoall, "splits"),
                 TensorOf(CollectiveKind::kBroadcast, "root"), Gradient("a"),
                 TensorOf(CollectiveKind::kReduce, "launched")});
  member.Plan({"launched"});
  member.Lose();
  member.Interrupt(1);
  EXPECT_THAT(member.All<FailTensor>(), IsEmpty());
  EXPECT_THAT(member.All<GenerationInterrupted>(), SizeIs(1));
  member.Clear();
  member.NextGeneration(0, 2);
  member.TakeBack(4, TensorOf(CollectiveKind::kReduce, "launched"));
  for (int64_t id : {1, 2, 4}) EXPECT_TRUE(IsGenerationChanged(member.failure(id))) << id;
  EXPECT_THAT(member.failure(3), IsOk());
  EXPECT_THAT(member.failure(1), StatusIs(absl::StatusCode::kAborted, HasSubstr("pid 4711")));
  // Whoever hears of it finds the new ranks.
  const auto& effects = member.effects();
  const auto is_failure = [](const WorkerEffect& effect) {
    return std::holds_alternative<FailTensor>(effect);
  };
  const auto enters = [](const WorkerEffect& effect) {
    return std::holds_alternative<EnterGeneration>(effect);
  };
  EXPECT_LT(std::find_if(effects.begin(), effects.end(), enters),
            std::find_if(effects.begin(), effects.end(), is_failure));
}

TEST(WorkerStateContinuing, WhatWasMeantForTheOldRanksFailsHoweverLateItComes) {
  Continuer member;
  member.Lose();
  member.NextGeneration(0, 2);
  TensorsSubmitted late;
  late.generation = Generation{1};
  late.tensors.push_back(
      {TensorId{1}, TensorOf(CollectiveKind::kBroadcast, "root"), member.now() + kTimeout});
  late.tensors.push_back({TensorId{2}, Gradient("a"), member.now() + kTimeout});
  member.Turn(std::move(late));
  EXPECT_TRUE(IsGenerationChanged(member.failure(1)));
  EXPECT_THAT(member.reported(), ElementsAre("a"));
}

TEST(WorkerStateContinuing, ARequestForAProcessSetIsAboutRanksToo) {
  Continuer member;
  const auto ask = [&member] {
    member.Clear();
    member.Turn(ProcessSetAsked{7, {}, {0, 1}, member.now() + kTimeout, Generation{1}});
    return member.All<ProcessSetAnswer>();
  };
  member.Lose();
  ASSERT_THAT(ask(), SizeIs(1));
  EXPECT_TRUE(IsGenerationChanged(ask()[0].status));
  member.NextGeneration(0, 2);
  ASSERT_THAT(ask(), SizeIs(1));
  EXPECT_TRUE(IsGenerationChanged(ask()[0].status));
}

TEST(WorkerStateContinuing, WhenNothingFollowsEverythingFails) {
  Continuer member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Plan({"a"});
  member.Lose();
  member.Interrupt(1);
  member.Turn(StreamEnded{absl::DeadlineExceededError("nobody came")});
  ASSERT_THAT(member.All<GenerationEnded>(), SizeIs(1));
  EXPECT_TRUE(member.All<GenerationEnded>()[0].for_good);
  for (int64_t id : {1, 2})
    EXPECT_THAT(member.failure(id), StatusIs(absl::StatusCode::kAborted, HasSubstr("nobody came")));
}

TEST(WorkerStateContinuing, ADeadlineIsKeptWhileTheGenerationChanges) {
  Continuer member;
  member.Submit({Gradient("a")}, absl::Seconds(1));
  member.Lose();
  member.Advance(absl::Seconds(1));
  EXPECT_EQ(member.failure(1).code(), absl::StatusCode::kDeadlineExceeded);
  member.Clear();
  member.NextGeneration(0, 2);
  EXPECT_THAT(member.reported(), IsEmpty());
}

TEST(WorkerStateContinuing, MayLeaveWhileItWaits) {
  Continuer member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Plan({"a"});
  member.Lose();
  member.Interrupt(1);
  member.Turn(LeaveRequested{});
  for (int64_t id : {1, 2}) EXPECT_EQ(member.failure(id).code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(member.sent(v1::WorkerMessage::kLeave), SizeIs(1));
}

}  // namespace
}  // namespace coordd
