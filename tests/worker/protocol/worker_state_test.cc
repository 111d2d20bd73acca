#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/state_member.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST(WorkerState, ReportsWhatIsSubmittedInOneMessagePerTurn) {
  Member member;
  member.Submit({Gradient("a"), Gradient("b")});
  const auto messages = member.sent(v1::WorkerMessage::kTensorsReady);
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].epoch(), 7);
  EXPECT_EQ(messages[0].generation(), 1);
  EXPECT_THAT(member.reported(), ElementsAre("a", "b"));
}

TEST(WorkerState, SplitsAReportAtItsBound) {
  Member member;
  std::vector<TensorSpec> specs;
  std::vector<std::string> names;
  for (int i = 0; i < 2000; ++i) {
    names.push_back(absl::StrCat(std::string(400, 'x'), i));
    specs.push_back(Gradient(names.back()));
  }
  member.Submit(specs);
  const auto messages = member.sent(v1::WorkerMessage::kTensorsReady);
  EXPECT_EQ(messages.size(), 4u);  // 2000 * (some 420 bytes) over 256 KiB
  for (const auto& message : messages)
    EXPECT_LE(static_cast<int64_t>(message.tensors_ready().ByteSizeLong()), kMaxReportBytes);
  EXPECT_EQ(member.reported(), names);
}

TEST(WorkerState, LaunchesAPlanWithHowLongItTook) {
  Member member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Advance(absl::Milliseconds(3));
  member.Clear();
  member.Plan({"b", "a"});
  const auto launches = member.All<LaunchBatch>();
  ASSERT_THAT(launches, SizeIs(1));
  EXPECT_EQ(launches[0].sequence, 1);
  EXPECT_THAT(launches[0].tensors, ElementsAre(TensorId{2}, TensorId{1}));
  EXPECT_THAT(launches[0].negotiation, ElementsAre(absl::Milliseconds(3), absl::Milliseconds(3)));
  EXPECT_EQ(member.state().pending_tensors(), 0);
  EXPECT_EQ(member.state().executing_batches(), 1);
}

TEST(WorkerState, MayReportANameAgainOnceItsBatchIsDone) {
  Member member;
  member.Submit({Gradient("a")});
  member.Plan({"a"});
  member.Done(1);
  member.Clear();
  member.Submit({Gradient("a")});
  EXPECT_THAT(member.reported(), ElementsAre("a"));
  member.Plan({"a"});
  EXPECT_THAT(member.All<LaunchBatch>(), SizeIs(1));
}

TEST(WorkerState, EndsTheGenerationWhenAPlanNamesWhatWasNotSubmitted) {
  Member member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Clear();
  member.Plan({"a", "zebra"});
  EXPECT_THAT(member.state().status(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("tensor zebra")));
  EXPECT_THAT(member.sent(v1::WorkerMessage::kCollectiveFailed), SizeIs(1));
  EXPECT_THAT(member.All<AbortExecution>(), SizeIs(1));
  // Both: the one whose batch was refused, and the one that waited.
  EXPECT_THAT(member.failure(1), StatusIs(absl::StatusCode::kInternal, HasSubstr("tensor a: ")));
  EXPECT_THAT(member.failure(2), StatusIs(absl::StatusCode::kInternal, HasSubstr("tensor b: ")));
}

TEST(WorkerState, EndsTheGenerationWhenAPlanFusesWhatCannotTravelTogether) {
  Member member;
  TensorSpec other = Gradient("b");
  other.dtype = DataType::kInt8;
  member.Submit({Gradient("a"), other});
  member.Plan({"a", "b"});
  EXPECT_THAT(member.state().status(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("cannot travel")));
  EXPECT_FALSE(member.failure(1).ok());
  EXPECT_FALSE(member.failure(2).ok());
}

TEST(WorkerState, EndsTheGenerationOnAGapInTheMessages) {
  Member member;
  member.Submit({Gradient("a")});
  member.SkipMessage();
  member.Plan({"a"});
  EXPECT_THAT(member.state().status(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("message 3, expected 2")));
}

TEST(WorkerState, IgnoresAMessageOfAnOlderGeneration) {
  Member member;
  member.Submit({Gradient("a")});
  v1::CoordinatorMessage message = member.Message();
  message.set_generation(0);
  message.mutable_abort();
  member.Say(message);
  EXPECT_THAT(member.state().status(), IsOk());
}

TEST(WorkerState, FailsATensorAsCoorddSays) {
  Member member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Fail("a", absl::StatusCode::kInvalidArgument, "tensor a: rank 1 has shape [5], not [4]");
  EXPECT_THAT(member.failure(1), StatusIs(absl::StatusCode::kInvalidArgument,
                                          AllOf(HasSubstr("rank 1"), HasSubstr("generation 1"))));
  EXPECT_THAT(member.failure(2), IsOk());
  EXPECT_THAT(member.state().status(), IsOk());
  EXPECT_EQ(member.state().pending_tensors(), 1);
}

TEST(WorkerState, NamesTheLostRankInEveryPendingAndFurtherTensor) {
  Member member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Plan({"a"});
  member.Clear();
  member.Abort(v1::DEPARTURE_CAUSE_CONNECTION_LOST,
               "was lost: its connection closed without a goodbye", /*in_flight=*/true);
  const std::string why =
      "generation 1 ended: rank 2 (host node3, pid 4711) was lost: its connection closed without "
      "a goodbye";
  EXPECT_THAT(member.failure(2), StatusIs(absl::StatusCode::kAborted, "tensor b: " + why));
  EXPECT_THAT(member.All<AbortExecution>(), SizeIs(1));
  // What executes fails when the backend has let go of its buffers.
  EXPECT_THAT(member.failure(1), IsOk());
  member.Done(1, absl::AbortedError("the transport was aborted"));
  EXPECT_THAT(member.failure(1), StatusIs(absl::StatusCode::kAborted, "tensor a: " + why));
  member.Submit({Gradient("c")});
  EXPECT_THAT(member.failure(3), StatusIs(absl::StatusCode::kAborted, "tensor c: " + why));
}

TEST(WorkerState, LetsPlannedBatchesCompleteWhenARankLeaves) {
  Member member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Plan({"a"});
  member.Abort(v1::DEPARTURE_CAUSE_LEFT, "", /*in_flight=*/false);
  EXPECT_THAT(member.All<AbortExecution>(), IsEmpty());
  EXPECT_THAT(member.failure(2), StatusIs(absl::StatusCode::kAborted,
                                          HasSubstr("rank 2 (host node3, pid 4711) left")));
  member.Done(1);
  EXPECT_THAT(member.failure(1), IsOk());
}

TEST(WorkerState, WaitsForCoorddToNameTheCulpritOfAFailedBatch) {
  Member member;
  member.Submit({Gradient("a")});
  member.Plan({"a"});
  member.Clear();
  member.Done(1, absl::UnavailableError("rank 2: connection reset"), Rank{2});
  const auto failed = member.sent(v1::WorkerMessage::kCollectiveFailed);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].collective_failed().suspect_rank(), 2);
  EXPECT_EQ(failed[0].collective_failed().tensor(), "a");
  EXPECT_THAT(member.failure(1), IsOk());
  member.Abort(v1::DEPARTURE_CAUSE_CONNECTION_LOST, "", /*in_flight=*/true);
  EXPECT_THAT(member.failure(1),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("host node3, pid 4711) was lost")));
}

TEST(WorkerState, GivesItsOwnReasonWhenCoorddDoesNotNameTheCulprit) {
  Member member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Plan({"a"});
  member.Done(1, absl::UnavailableError("rank 2: connection reset"), Rank{2});
  EXPECT_LE(member.state().NextDeadline(), member.now() + kVerdictWait);
  member.Advance(kVerdictWait);
  for (int64_t id : {1, 2})
    EXPECT_THAT(member.failure(id),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2: connection reset")));
}

TEST(WorkerState, AsksToWithdrawATensorAtItsDeadlineAndWaitsForTheAnswer) {
  Member member;
  member.Submit({Gradient("a")}, absl::Seconds(3));
  member.Clear();
  EXPECT_LE(member.state().NextDeadline(), kStart + absl::Seconds(3));
  member.Advance(absl::Seconds(3));
  const auto withdrawn = member.sent(v1::WorkerMessage::kTensorsWithdrawn);
  ASSERT_THAT(withdrawn, SizeIs(1));
  EXPECT_THAT(withdrawn[0].tensors_withdrawn().names(), ElementsAre("a"));
  EXPECT_THAT(member.failure(1), IsOk());
  member.Fail("a", absl::StatusCode::kCancelled, "rank 0 withdrew it; ranks 1, 2 had not come");
  EXPECT_THAT(member.failure(1),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("tensor a: "), HasSubstr("ranks 1, 2 had not come"))));
  EXPECT_THAT(member.state().status(), IsOk());
}

// Those that wait for it have to hear of it.
TEST(WorkerState, ReportsATensorWhoseDeadlineComesBeforeTheEndOfTheTurnAndWithdrawsIt) {
  Member member;
  member.Submit({Gradient("a")}, /*timeout=*/absl::ZeroDuration());
  EXPECT_THAT(member.reported(), ElementsAre("a"));
  const auto asked = member.sent(v1::WorkerMessage::kTensorsWithdrawn);
  ASSERT_THAT(asked, SizeIs(1));
  EXPECT_THAT(asked[0].tensors_withdrawn().names(), ElementsAre("a"));
  EXPECT_THAT(member.All<FailTensor>(), IsEmpty());
  member.Fail("a", absl::StatusCode::kCancelled, "rank 0 withdrew it");
  EXPECT_THAT(member.All<FailTensor>(), SizeIs(1));
}

TEST(WorkerState, ExecutesATensorWhosePlanCrossesItsWithdrawal) {
  Member member;
  member.Submit({Gradient("a")}, absl::Seconds(3));
  member.Advance(absl::Seconds(3));
  member.Clear();
  member.Plan({"a"});
  EXPECT_THAT(member.All<LaunchBatch>(), SizeIs(1));
  member.Done(1);
  EXPECT_THAT(member.All<FailTensor>(), IsEmpty());
}

TEST(WorkerState, EndsTheGenerationWhenAWithdrawalIsNotAnswered) {
  Member member;
  member.Submit({Gradient("a")}, absl::Seconds(3));
  member.Advance(absl::Seconds(3));
  member.Advance(kWithdrawalAnswer);
  EXPECT_THAT(member.failure(1),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("did not answer")));
  EXPECT_FALSE(member.state().status().ok());
}

TEST(WorkerState, EndsTheGenerationWhenABatchExecutesPastADeadline) {
  Member member;
  member.Submit({Gradient("a")}, absl::Seconds(3));
  member.Submit({Gradient("b")});
  member.Plan({"a", "b"});
  member.Clear();
  member.Advance(absl::Seconds(3));
  EXPECT_THAT(member.sent(v1::WorkerMessage::kCollectiveFailed), SizeIs(1));
  EXPECT_THAT(member.All<AbortExecution>(), SizeIs(1));
  member.Done(1, absl::AbortedError("aborted"));
  EXPECT_THAT(member.failure(1), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                          HasSubstr("tensor a: still executing")));
  EXPECT_THAT(member.failure(2),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("tensor a was still executing")));
}

TEST(WorkerState, SendsHeartbeatsWithWhereItIs) {
  Member member;
  member.Submit({Gradient("a", {10}), Gradient("late")});
  member.Plan({"a"});
  member.Done(1);
  member.Clear();
  EXPECT_EQ(member.state().NextDeadline(), kStart + absl::Seconds(2));
  member.Advance(absl::Seconds(2));
  const auto beats = member.sent(v1::WorkerMessage::kHeartbeat);
  ASSERT_THAT(beats, SizeIs(1));
  const v1::Heartbeat& beat = beats[0].heartbeat();
  EXPECT_EQ(beat.sent_ns(), absl::ToUnixNanos(member.now()));
  EXPECT_EQ(beat.collectives_completed(), 1);
  EXPECT_EQ(beat.bytes_reduced(), 40);
  ASSERT_THAT(beat.lanes(), SizeIs(1));
  EXPECT_EQ(beat.lanes(0).launched(), 1);
  EXPECT_EQ(beat.lanes(0).completed(), 1);
  EXPECT_EQ(beat.lanes(0).oldest_waiting(), "late");
  EXPECT_EQ(beat.lanes(0).waiting().seconds(), 2);
}

TEST(WorkerState, InALargeJobReportsAtTheMomentOfItsGroupByCoorddsClock) {
  WorkerStateOptions options = Member::Options();
  options.size = 1024;
  options.rank = Rank{3 * 64 + 5};
  options.heartbeat_interval = absl::Seconds(4);
  Member member(kStart, options);
  EXPECT_EQ(member.state().NextDeadline(), kStart + absl::Seconds(4)) << "its clock is not known";
  const absl::Duration offset = absl::Milliseconds(100'700);
  v1::CoordinatorMessage ack = member.Message();
  ack.mutable_lease_ack()->set_echoed_sent_ns(absl::ToUnixNanos(kStart));
  ack.mutable_lease_ack()->mutable_lease()->set_seconds(10);
  ack.mutable_lease_ack()->set_coordd_ns(absl::ToUnixNanos(kStart + offset));
  member.Say(ack);
  member.Advance(absl::Seconds(4));
  for (int beat = 0; beat < 3; ++beat) {
    const absl::Time next = member.state().NextDeadline();
    EXPECT_EQ((next + offset - absl::UnixEpoch()) % absl::Seconds(4), absl::Milliseconds(750));
    EXPECT_GE(next, member.now() + absl::Milliseconds(500));
    EXPECT_LE(next, member.now() + absl::Milliseconds(4500));
    member.Clear();
    ack = member.Message();
    ack.mutable_lease_ack()->set_echoed_sent_ns(absl::ToUnixNanos(member.now()));
    ack.mutable_lease_ack()->mutable_lease()->set_seconds(10);
    member.Say(ack);
    member.Advance(next + absl::Milliseconds(20 * beat) - member.now());
    EXPECT_THAT(member.sent(v1::WorkerMessage::kHeartbeat), SizeIs(1));
  }
}

TEST(WorkerState, GivesUpWhenItsLeaseRunsOut) {
  Member member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Plan({"a"});
  for (int i = 0; i < 9; ++i) member.Advance(absl::Seconds(1));
  v1::CoordinatorMessage ack = member.Message();
  ack.mutable_lease_ack()->set_echoed_sent_ns(absl::ToUnixNanos(kStart + absl::Seconds(8)));
  ack.mutable_lease_ack()->mutable_lease()->set_seconds(10);
  member.Say(ack);
  for (int i = 0; i < 8; ++i) member.Advance(absl::Seconds(1));
  EXPECT_THAT(member.state().status(), IsOk());  // 17 s: within the lease that was counted from 8 s
  member.Advance(absl::Seconds(1));
  EXPECT_THAT(member.failure(2),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("heartbeats for 10 s")));
  // It may finish what it has begun: coordd may simply be gone.
  EXPECT_THAT(member.All<AbortExecution>(), IsEmpty());
}

TEST(WorkerState, ReadsWhatCameWhileItWasStoppedBeforeItGivesUp) {
  Member member;
  member.Submit({Gradient("a")});
  member.Advance(absl::Seconds(30));
  EXPECT_THAT(member.state().status(), IsOk());
  for (int i = 0; i < 4; ++i) member.Advance(absl::Seconds(1));
  EXPECT_THAT(member.state().status(), IsOk());
  member.Advance(absl::Seconds(1));  // half a lease
  EXPECT_THAT(member.failure(1), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("heartbeats")));
}

TEST(WorkerState, FailsWhatIsNotPlannedWhenTheConnectionEnds) {
  Member member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Plan({"a"});
  member.Turn(StreamEnded{absl::UnavailableError("Socket closed")});
  EXPECT_THAT(member.failure(2),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("Socket closed")));
  // As whoever has set COORDD_RESUME_TIMEOUT wonders about.
  EXPECT_THAT(member.failure(2).message(), HasSubstr("its state is in memory only"));
  member.Done(1);
  EXPECT_THAT(member.failure(1), IsOk());
}

// Others may not have launched it, or may be as far away as coordd is.
TEST(WorkerState, AbortsWhatDoesNotEndAfterCoorddIsLost) {
  Member member;
  member.Submit({Gradient("a")});
  member.Plan({"a"});
  member.Turn(StreamEnded{absl::UnavailableError("Socket closed")});
  member.Advance(kLeftBehindWait - absl::Milliseconds(1));
  EXPECT_THAT(member.All<AbortExecution>(), IsEmpty());
  member.Advance(absl::Milliseconds(1));
  EXPECT_THAT(member.All<AbortExecution>(), SizeIs(1));
  member.Done(1, absl::AbortedError("aborted"));
  EXPECT_THAT(member.failure(1),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("Socket closed")));
}

TEST(WorkerState, TellsCoorddWhetherAPeerIsSilent) {
  for (bool silent : {false, true}) {
    Member member;
    member.Submit({Gradient("a")});
    member.Plan({"a"});
    member.Clear();
    BatchDone done{LaneId{0}, 1, absl::UnavailableError("rank 2: nothing comes"), std::nullopt};
    done.suspect = Suspect{Rank{2}, silent};
    member.Turn(std::move(done));
    const auto failed = member.sent(v1::WorkerMessage::kCollectiveFailed);
    ASSERT_THAT(failed, SizeIs(1));
    EXPECT_EQ(failed[0].collective_failed().suspect_rank(), 2);
    EXPECT_EQ(failed[0].collective_failed().suspect_silent(), silent);
  }
}

TEST(WorkerState, KeepsTheFirstReasonWhenTheStreamEndsAfterAnAbort) {
  Member member;
  member.Abort(v1::DEPARTURE_CAUSE_CONNECTION_LOST, "", /*in_flight=*/true);
  member.Turn(StreamEnded{absl::FailedPreconditionError("the generation is over")});
  EXPECT_THAT(member.state().status(), StatusIs(absl::StatusCode::kAborted, HasSubstr("node3")));
}

TEST(WorkerState, SaysGoodbyeAfterWhatIsPlanned) {
  Member member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Plan({"a"});
  member.Clear();
  member.Turn(LeaveRequested{});
  // b is known to coordd: the others must learn that it will not come.
  ASSERT_THAT(member.sent(v1::WorkerMessage::kTensorsWithdrawn), SizeIs(1));
  EXPECT_THAT(member.sent(v1::WorkerMessage::kLeave), IsEmpty());
  member.Fail("b", absl::StatusCode::kCancelled, "rank 0 withdrew it");
  EXPECT_THAT(member.failure(2), StatusIs(absl::StatusCode::kCancelled, HasSubstr("tensor b")));
  member.Done(1);
  EXPECT_THAT(member.sent(v1::WorkerMessage::kLeave), SizeIs(1));
  EXPECT_THAT(member.All<CloseStream>(), SizeIs(1));
  EXPECT_THAT(member.All<Stopped>(), IsEmpty());
  member.Turn(StreamEnded{absl::OkStatus()});
  EXPECT_THAT(member.All<Stopped>(), SizeIs(1));
  EXPECT_EQ(member.state().NextDeadline(), absl::InfiniteFuture());
}

TEST(WorkerState, RefusesSubmissionsOnceItLeaves) {
  Member member;
  member.Turn(LeaveRequested{});
  member.Submit({Gradient("a")});
  EXPECT_THAT(member.failure(1),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("shutting down")));
}

TEST(WorkerState, StopsByForceOnceTheBackendHasLetGo) {
  Member member;
  member.Submit({Gradient("a")});
  member.Plan({"a"});
  member.Turn(LeaveRequested{});
  member.Turn(StopForced{});
  EXPECT_THAT(member.All<AbortExecution>(), SizeIs(1));
  EXPECT_THAT(member.All<Stopped>(), IsEmpty());
  member.Done(1, absl::AbortedError("aborted"));
  EXPECT_THAT(member.failure(1), StatusIs(absl::StatusCode::kCancelled, HasSubstr("tensor a")));
  EXPECT_THAT(member.All<Stopped>(), SizeIs(1));
}

TEST(WorkerState, FailsWhatIsPendingWhenCoorddStops) {
  Member member;
  member.Submit({Gradient("a")});
  v1::CoordinatorMessage message = member.Message();
  message.mutable_shutdown()->set_reason("SIGTERM");
  member.Say(message);
  EXPECT_THAT(member.failure(1), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("SIGTERM")));
}

TEST(WorkerState, EveryTensorEndsExactlyOnce) {
  Member member;
  member.Submit({Gradient("a"), Gradient("b"), Gradient("c")}, absl::Seconds(3));
  member.Plan({"a"});
  member.Advance(absl::Seconds(3));  // a is overdue, b and c are withdrawn
  member.Abort(v1::DEPARTURE_CAUSE_LEASE_EXPIRED, "", /*in_flight=*/true);
  member.Done(1, absl::AbortedError("aborted"));
  member.Turn(StreamEnded{absl::UnavailableError("closed")});
  member.Turn(LeaveRequested{});
  member.Turn(StopForced{});
  EXPECT_THAT(member.All<FailTensor>(), SizeIs(3));
  for (int64_t id : {1, 2, 3}) EXPECT_THAT(member.failure(id), Not(IsOk()));
  EXPECT_THAT(member.All<Stopped>(), SizeIs(1));
}

}  // namespace
}  // namespace coordd
