// What a worker does with schedules: tensors launch without a message, until something else comes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/protocol/protocol_bounds.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/state_member.h"

namespace coordd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr LaneId kScheduleLane{kFirstScheduleLane};

class ScheduledMember : public Member {
 public:
  // Of batches of gradients.
  void Schedule(const std::vector<std::vector<std::string>>& batches, bool more = false) {
    v1::CoordinatorMessage message = Message();
    v1::Schedule& schedule = *message.mutable_schedule();
    schedule.set_id(1);
    schedule.set_lane(ToInt(kScheduleLane));
    schedule.set_more(more);
    for (const auto& batch : batches) {
      v1::ScheduledBatch* to = schedule.add_batches();
      for (const std::string& name : batch) {
        TensorSpec spec = Gradient(name);
        spec.memory = memory_;
        ToProto(spec, to->add_tensors());
      }
    }
    Say(std::move(message));
  }
  void Freeze() {
    v1::CoordinatorMessage message = Message();
    message.mutable_freeze()->set_id(1);
    Say(std::move(message));
  }
  void Cut(int64_t position) {
    v1::CoordinatorMessage message = Message();
    message.mutable_cut()->set_id(1);
    message.mutable_cut()->set_position(position);
    Say(std::move(message));
  }
  void DoneScheduled(int64_t sequence) {
    Turn(BatchDone{kScheduleLane, sequence, absl::OkStatus(), std::nullopt});
  }
  void Trace(v1::TraceAction action, int64_t from_cycle = 0, int64_t until_cycle = 0) {
    v1::CoordinatorMessage message = Message();
    v1::Trace& trace = *message.mutable_trace();
    trace.set_id(1);
    trace.set_action(action);
    trace.set_lane(ToInt(kScheduleLane));
    trace.set_bytes_max(1000);
    trace.set_from_cycle(from_cycle);
    trace.set_until_cycle(until_cycle);
    Say(std::move(message));
  }
  void Cycle() {
    Submit({Gradient("a")});
    DoneScheduled(++cycles_);
  }
  std::vector<std::string> breaks() const {
    std::vector<std::string> reasons;
    for (const auto& message : sent(v1::WorkerMessage::kScheduleBreak))
      reasons.push_back(message.schedule_break().reason());
    return reasons;
  }
  std::vector<int64_t> launched() const {
    std::vector<int64_t> sequences;
    for (const LaunchBatch& launch : All<LaunchBatch>())
      if (launch.lane == kScheduleLane) sequences.push_back(launch.sequence);
    return sequences;
  }

  void OnDevices() { memory_ = MemoryKind::kCuda; }
  void SubmitOnDevice(const std::string& name) {
    TensorSpec spec = Gradient(name);
    spec.memory = MemoryKind::kCuda;
    Submit({spec});
  }

 private:
  int64_t cycles_ = 0;
  MemoryKind memory_ = MemoryKind::kHost;
};

TEST(WorkerStateSchedulesTest, OfDevicesSayWhenTheyHaveComeToTheCut) {
  ScheduledMember member;
  member.OnDevices();
  member.Schedule({{"a"}});
  member.SubmitOnDevice("a");
  member.DoneScheduled(1);
  member.Freeze();
  member.Cut(2);
  EXPECT_THAT(member.sent(v1::WorkerMessage::kScheduleFinished), IsEmpty());
  member.SubmitOnDevice("a");
  const auto finished = member.sent(v1::WorkerMessage::kScheduleFinished);
  ASSERT_THAT(finished, SizeIs(1));
  EXPECT_EQ(finished[0].schedule_finished().id(), 1);
}

TEST(WorkerStateSchedulesTest, OfTheHostSayNothingAtTheCut) {
  ScheduledMember member;
  member.Schedule({{"a"}});
  member.Freeze();
  member.Cut(0);
  EXPECT_THAT(member.sent(v1::WorkerMessage::kScheduleFinished), IsEmpty());
}

TEST(WorkerStateSchedulesTest, WhatIsStagedIsLaunchedSo) {
  ScheduledMember member;
  member.SubmitOnDevice("loss");
  member.Plan({"loss"}, /*staged=*/true);
  ASSERT_THAT(member.All<LaunchBatch>(), SizeIs(1));
  EXPECT_TRUE(member.All<LaunchBatch>()[0].staged);
}

TEST(WorkerStateSchedulesTest, OfDevicesEndWhenOtherThingsAreStagedInsteadOfThem) {
  ScheduledMember member;
  member.OnDevices();
  member.Schedule({{"a"}});
  for (int step = 0; step < 20; ++step) {  // now and then is no reason
    member.SubmitOnDevice("loss");
    member.Plan({"loss"}, /*staged=*/true);
    if (step % 4 == 0) member.SubmitOnDevice("a");
    if (step % 4 == 0) member.DoneScheduled(step / 4 + 1);
  }
  EXPECT_THAT(member.breaks(), IsEmpty());
  for (int step = 0; step < 8; ++step) {
    member.SubmitOnDevice("other");
    member.Plan({"other"}, /*staged=*/true);
  }
  EXPECT_THAT(member.breaks(), ElementsAre(HasSubstr("8 batches of other tensors on devices")));
}

TEST(WorkerStateSchedulesTest, OfDevicesAndOfTheHostAreNotMixed) {
  ScheduledMember member;
  v1::CoordinatorMessage message = member.Message();
  v1::Schedule& schedule = *message.mutable_schedule();
  schedule.set_id(1);
  schedule.set_lane(ToInt(kScheduleLane));
  ToProto(Gradient("a"), schedule.add_batches()->add_tensors());
  TensorSpec on_device = Gradient("b");
  on_device.memory = MemoryKind::kCuda;
  ToProto(on_device, schedule.add_batches()->add_tensors());
  member.Say(std::move(message));
  EXPECT_THAT(member.state().status(),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("schedule 1 with tensors in host memory and")));
}

TEST(WorkerStateSchedulesTest, LaunchesWithoutAMessage) {
  ScheduledMember member;
  member.Schedule({{"a"}, {"b"}});
  EXPECT_THAT(member.sent(v1::WorkerMessage::kScheduleAck), SizeIs(1));
  for (int64_t step = 0; step < 3; ++step) {
    member.Submit({Gradient("a")});
    member.Submit({Gradient("b")});
    member.DoneScheduled(2 * step + 1);
    member.DoneScheduled(2 * step + 2);
  }
  EXPECT_THAT(member.launched(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(member.reported(), IsEmpty());
}

TEST(WorkerStateSchedulesTest, HeartbeatsTellHowLongItsCollectivesTook) {
  ScheduledMember member;
  member.Schedule({{"a"}});
  member.Submit({Gradient("a")});
  member.Turn(BatchDone{kScheduleLane, 1, absl::OkStatus(), std::nullopt,
                        member.now() + absl::Milliseconds(30)});
  member.Advance(absl::Seconds(2));
  const auto beats = member.sent(v1::WorkerMessage::kHeartbeat);
  ASSERT_THAT(beats, SizeIs(1));
  ASSERT_THAT(beats[0].heartbeat().lanes(), SizeIs(2));
  const v1::LanePosition& lane = beats[0].heartbeat().lanes(1);
  EXPECT_EQ(lane.lane(), ToInt(kScheduleLane));
  ASSERT_THAT(lane.marks(), SizeIs(1));
  EXPECT_EQ(lane.marks(0).cycles(), 1);
  EXPECT_EQ(lane.marks(0).busy_ns(), 30'000'000);
}

TEST(WorkerStateSchedulesTest, ATraceEndsByItselfBehindItsLastRepetition) {
  ScheduledMember member;
  member.Schedule({{"a"}});
  member.Cycle();
  member.Trace(v1::TRACE_ACTION_BEGIN);
  EXPECT_THAT(member.All<TraceBegin>(), SizeIs(1));
  const auto answers = member.sent(v1::WorkerMessage::kTraceChunk);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_TRUE(answers[0].trace_chunk().begun());
  EXPECT_EQ(answers[0].trace_chunk().cycles(), 1);
  member.Trace(v1::TRACE_ACTION_UNTIL, /*from_cycle=*/2, /*until_cycle=*/4);
  member.Cycle();
  member.Cycle();
  EXPECT_THAT(member.All<TraceEnd>(), IsEmpty());
  member.Cycle();
  const auto ends = member.All<TraceEnd>();
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_TRUE(ends[0].send);
  EXPECT_EQ(ends[0].chunk.trace_chunk().id(), 1);
  EXPECT_EQ(ends[0].from_cycle, 2);
  EXPECT_EQ(ends[0].until_cycle, 4);
  EXPECT_EQ(ends[0].batches_per_cycle, 1);
  member.Trace(v1::TRACE_ACTION_END);
  EXPECT_THAT(member.All<TraceEnd>(), SizeIs(1)) << "it has ended";
}

TEST(WorkerStateSchedulesTest, ATraceOfAScheduleThatWasCutIsEndedByCoordd) {
  ScheduledMember member;
  member.Schedule({{"a"}});
  member.Trace(v1::TRACE_ACTION_BEGIN);
  member.Trace(v1::TRACE_ACTION_UNTIL, 0, 1000);
  member.Cycle();
  member.Freeze();
  member.Cut(1);
  EXPECT_THAT(member.All<TraceEnd>(), IsEmpty());
  member.Trace(v1::TRACE_ACTION_END);
  const auto ends = member.All<TraceEnd>();
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_EQ(ends[0].batches_per_cycle, 0) << "all that was recorded";
}

TEST(WorkerStateSchedulesTest, AProgramThatEndsSendsWhatItHasRecordedBeforeItsGoodbye) {
  ScheduledMember member;
  member.Trace(v1::TRACE_ACTION_BEGIN);
  member.Turn(LeaveRequested{});
  EXPECT_THAT(member.All<TraceEnd>(), SizeIs(1));
  EXPECT_THAT(member.sent(v1::WorkerMessage::kLeave), SizeIs(1));
}

TEST(WorkerStateSchedulesTest, AScheduleMayComeInParts) {
  ScheduledMember member;
  member.Schedule({{"a"}}, /*more=*/true);
  EXPECT_THAT(member.sent(v1::WorkerMessage::kScheduleAck), IsEmpty());
  member.Schedule({{"b"}});
  EXPECT_THAT(member.sent(v1::WorkerMessage::kScheduleAck), SizeIs(1));
  member.Submit({Gradient("b")});
  EXPECT_THAT(member.launched(), IsEmpty());
  member.Submit({Gradient("a")});
  EXPECT_THAT(member.launched(), ElementsAre(1, 2));
}

TEST(WorkerStateSchedulesTest, TakesAlongWhatItHasReported) {
  ScheduledMember member;
  member.Submit({Gradient("a")});
  EXPECT_THAT(member.reported(), ElementsAre("a"));
  member.Schedule({{"a"}});
  EXPECT_THAT(member.launched(), ElementsAre(1));
}

TEST(WorkerStateSchedulesTest, WhatIsNotInItIsReported) {
  ScheduledMember member;
  member.Schedule({{"a"}});
  member.Submit({Gradient("metric")});
  EXPECT_THAT(member.reported(), ElementsAre("metric"));
  EXPECT_THAT(member.breaks(), IsEmpty());
}

TEST(WorkerStateSchedulesTest, AnotherShapeBreaksItAndIsReportedBehindTheCut) {
  ScheduledMember member;
  member.Schedule({{"a"}});
  member.Submit({Gradient("a", {7})});
  EXPECT_THAT(member.breaks(), ElementsAre(HasSubstr("tensor a came as allreduce float32 [7]")));
  member.Freeze();
  const auto replies = member.sent(v1::WorkerMessage::kFreezeReply);
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].freeze_reply().launched(), 0);
  EXPECT_THAT(member.reported(), IsEmpty());
  member.Cut(0);
  EXPECT_THAT(member.reported(), ElementsAre("a"));
  EXPECT_THAT(member.All<EndLane>(), SizeIs(1));
}

TensorSpec RefusedCall(const std::string& name) {
  TensorSpec spec = Gradient(name);
  spec.kind = CollectiveKind::kBarrier;
  spec.op = ReduceOp::kNone;
  spec.shape = {};
  spec.refused = "on device meta";
  return spec;
}

TEST(WorkerStateSchedulesTest, ARefusedCallBreaksItAndIsReportedBehindTheCut) {
  ScheduledMember member;
  member.Schedule({{"a"}});
  member.Submit({RefusedCall("a")});
  EXPECT_THAT(member.breaks(),
              ElementsAre(HasSubstr("tensor a came as a call that was refused: on device meta")));
  member.Freeze();
  member.Cut(0);
  EXPECT_THAT(member.reported(), ElementsAre("a"));
}

TEST(WorkerStateSchedulesTest, ARefusedCallThatOthersHaveLaunchedEndsTheGenerationWithItsReason) {
  ScheduledMember member;
  member.Schedule({{"a"}});
  member.Submit({RefusedCall("a")});
  member.Freeze();
  member.Cut(1);
  EXPECT_THAT(member.state().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("tensor a came as a call that was refused: on device meta")));
}

TEST(WorkerStateSchedulesTest, SilenceInTheMiddleOfABatchBreaksIt) {
  ScheduledMember member;
  member.Schedule({{"a", "b"}});
  member.Submit({Gradient("a")});
  member.Advance(kScheduleSilence - absl::Milliseconds(1));
  EXPECT_THAT(member.breaks(), IsEmpty());
  member.Advance(absl::Milliseconds(1));
  EXPECT_THAT(member.breaks(), ElementsAre("tensor a waits for tensor b, which the program has not "
                                           "submitted"));
}

TEST(WorkerStateSchedulesTest, AProgramThatBlocksWaitsLessLong) {
  ScheduledMember member;
  member.Schedule({{"a", "b"}});
  member.Submit({Gradient("a")});
  EXPECT_EQ(member.state().NextDeadline(), member.now() + kBlockedSilence);
  member.Advance(kBlockedSilence);
  EXPECT_THAT(member.state().question(), ElementsAre(TensorId{1}));
  EXPECT_THAT(member.breaks(), IsEmpty()) << "nobody waits";
  member.Advance(kBlockedSilence);
  EXPECT_THAT(member.state().question(), ElementsAre(TensorId{1})) << "asked again";
  member.Turn(ProgramWaits{TensorId{1}});
  EXPECT_THAT(member.breaks(), SizeIs(1));
}

TensorSpec JoinSpec() {
  TensorSpec join = Gradient(kJoinName);
  join.kind = CollectiveKind::kJoin;
  join.op = ReduceOp::kNone;
  join.shape = {};
  return join;
}

TEST(WorkerStateSchedulesTest, AJoinInTheMiddleOfAStepIsSaidAgainBehindWhatTheCutGivesBack) {
  ScheduledMember member;
  member.Schedule({{"a", "b"}});
  member.Submit({Gradient("a")});
  member.Submit({JoinSpec()});
  member.Freeze();
  const auto replies = member.sent(v1::WorkerMessage::kFreezeReply);
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_TRUE(replies[0].freeze_reply().join_follows());
  EXPECT_THAT(member.reported(), ElementsAre(kJoinName));
  member.Cut(0);
  EXPECT_THAT(member.reported(), ElementsAre(kJoinName, "a", kJoinName));
}

TEST(WorkerStateSchedulesTest, AJoinWaitsForTheCutOfWhatIsFrozen) {
  ScheduledMember member;
  member.Schedule({{"a", "b"}});
  member.Submit({Gradient("a")});
  member.Freeze();
  member.Submit({JoinSpec()});
  EXPECT_THAT(member.reported(), IsEmpty());
  EXPECT_FALSE(member.state().turn_due());
  EXPECT_FALSE(member.sent(v1::WorkerMessage::kFreezeReply)[0].freeze_reply().join_follows());
  member.Cut(1);
  EXPECT_THAT(member.launched(), ElementsAre(1));
  EXPECT_THAT(member.reported(), ElementsAre(kJoinName));
}

TEST(WorkerStateSchedulesTest, AJoinThatWaitsForACutEndsAtItsDeadline) {
  ScheduledMember member;
  member.Schedule({{"a"}});
  member.Freeze();
  member.Submit({JoinSpec()}, absl::Milliseconds(100));
  member.Advance(absl::Milliseconds(100));
  EXPECT_THAT(member.failure(1), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("join")));
  member.Cut(0);
  EXPECT_THAT(member.reported(), IsEmpty());
}

TEST(WorkerStateSchedulesTest, AJoinedRankFillsUpToTheCut) {
  ScheduledMember member;
  member.Schedule({{"a"}, {"b"}});
  member.Submit({JoinSpec()});
  EXPECT_THAT(member.reported(), ElementsAre(kJoinName));
  member.Freeze();
  member.Cut(3);
  EXPECT_THAT(member.launched(), ElementsAre(1, 2, 3));
  EXPECT_THAT(member.All<LaunchBatch>()[0].absent, SizeIs(1));
}

TEST(WorkerStateSchedulesTest, ATensorWhoseDeadlinePassesEndsBehindTheCut) {
  ScheduledMember member;
  member.Schedule({{"a", "b"}});
  member.Submit({Gradient("a")}, absl::Milliseconds(100));
  member.Advance(absl::Milliseconds(100));
  EXPECT_THAT(member.breaks(), ElementsAre(HasSubstr("without tensor b")));
  EXPECT_THAT(member.failure(1), IsOk()) << "others may have launched it";
  member.Freeze();
  member.Cut(0);
  EXPECT_THAT(member.failure(1),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("without tensor b")));
}

TEST(WorkerStateSchedulesTest, WhatAMemberThatLeftWillNotLaunchIsGivenUp) {
  ScheduledMember member;
  member.Schedule({{"a"}});
  member.Submit({Gradient("a")});
  member.Abort(v1::DEPARTURE_CAUSE_LEFT, "", /*in_flight=*/false);
  EXPECT_THAT(member.All<AbortExecution>(), IsEmpty()) << "others may be in it";
  member.Advance(kLeftBehindWait);
  EXPECT_THAT(member.All<AbortExecution>(), SizeIs(1));
}

TEST(WorkerStateSchedulesTest, AScheduleThatMakesNoSenseEndsTheGeneration) {
  ScheduledMember member;
  member.Schedule({{"a"}, {"a"}});
  EXPECT_THAT(member.state().status(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("with tensor a twice")));
}

}  // namespace
}  // namespace coordd
