// What is read from a generation and written about it: plans, heartbeats, reports, traces.
#include "worker/protocol/worker_generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/protocol/protocol_bounds.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/state_member.h"
#include "worker/protocol/heartbeat_message.h"
#include "worker/protocol/plan_reader.h"
#include "worker/protocol/requested_trace.h"
#include "worker/protocol/resume_report.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

class WorkerGenerationTest : public ::testing::Test {
 protected:
  WorkerTurn Turn() { return {kStart, effects_}; }
  // Without keeping references to what ends with the statement.
  template <typename F>
  auto With(F call) {
    const WorkerTurn turn = Turn();
    return call(ScheduledWork::Context{turn, pending_, generation_.launched, session_});
  }
  void Submit(int64_t id, const TensorSpec& spec) {
    pending_.Add(TensorId{id}, {spec, kStart, kStart + kTimeout, false, {}});
    pending_.Report(generation_.slots, /*join_waits=*/false);
  }
  absl::Status Plan(const std::vector<std::string>& names, int64_t sequence, int32_t lane = 0) {
    v1::CollectivePlan plan;
    v1::FusedBatch& batch = *plan.add_batches();
    batch.set_sequence(sequence);
    batch.set_lane(lane);
    for (const std::string& name : names) batch.add_tensors(name);
    return With(
        [&](const auto& context) { return PlanReader(generation_, 3, context).Read(plan); });
  }
  absl::Status Schedule(const std::string& name) {
    v1::Schedule schedule;
    schedule.set_id(1);
    schedule.set_lane(kFirstScheduleLane);
    ToProto(Gradient(name), schedule.add_batches()->add_tensors());
    return With([&](const auto& context) {
      return generation_.schedules.OnSchedule(schedule, generation_.process_sets, 3, 9, context);
    });
  }
  template <typename T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const WorkerEffect& effect : effects_)
      if (const T* one = std::get_if<T>(&effect)) found.push_back(*one);
    return found;
  }

  std::vector<WorkerEffect> effects_;
  PendingTensors pending_;
  WorkerGeneration generation_{Rank{0}, 3, /*slot_capacity=*/8, {}};
  CoordinatorSession session_{{}, Epoch{7}, 5, 1, 1, kStart};
};

TEST_F(WorkerGenerationTest, ABatchIsLaunchedWithWhatIsPending) {
  Submit(1, Gradient("a"));
  Submit(2, Gradient("b"));
  EXPECT_THAT(Plan({"b", "a"}, 1), IsOk());
  ASSERT_EQ(All<LaunchBatch>().size(), 1u);
  EXPECT_EQ(All<LaunchBatch>()[0].tensors, (LaunchBatch::Tensors{TensorId{2}, TensorId{1}}));
  EXPECT_TRUE(pending_.empty());
}

TEST_F(WorkerGenerationTest, OfAWrongBatchNothingIsLaunchedAndItsTensorsAwaitTheVerdict) {
  Submit(1, Gradient("a"));
  EXPECT_THAT(Plan({"a", "x"}, 1), StatusIs(absl::StatusCode::kInternal, HasSubstr("tensor x")));
  EXPECT_TRUE(All<LaunchBatch>().empty());
  EXPECT_TRUE(generation_.launched.awaits_verdict());
  EXPECT_THAT(Plan({"a"}, 1, /*lane=*/2), StatusIs(absl::StatusCode::kInternal, HasSubstr("lane")));
}

TEST_F(WorkerGenerationTest, AHeartbeatNamesWhatEachLaneWaitsFor) {
  Submit(1, Gradient("a"));
  Submit(2, Gradient("b"));
  ASSERT_THAT(Plan({"a"}, 1), IsOk());
  ASSERT_THAT(Schedule("s"), IsOk());
  const v1::Heartbeat heartbeat =
      HeartbeatOf(pending_, generation_, {.bytes = 16}, kStart + absl::Seconds(2));
  EXPECT_EQ(heartbeat.bytes_reduced(), 16);
  ASSERT_EQ(heartbeat.lanes_size(), 2);
  EXPECT_EQ(heartbeat.lanes(0).launched(), 1);
  EXPECT_EQ(heartbeat.lanes(0).oldest_waiting(), "b");
  EXPECT_EQ(heartbeat.lanes(0).waiting().seconds(), 2);
  EXPECT_EQ(heartbeat.lanes(1).lane(), kFirstScheduleLane);
}

TEST_F(WorkerGenerationTest, WhoComesBackTellsOfItsLanesAndSchedules) {
  Submit(1, Gradient("a"));
  ASSERT_THAT(Plan({"a"}, 1), IsOk());
  ASSERT_THAT(Schedule("s"), IsOk());
  const auto reports = ResumeReportsOf(generation_, /*answered_requests=*/4);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].answered_requests(), 4);
  EXPECT_EQ(reports[0].last_schedule(), 1);
  EXPECT_EQ(reports[0].lanes(0).launched(), 1);
  EXPECT_EQ(reports[0].lanes(0).completed(), 0);
  ASSERT_EQ(reports[0].schedules_size(), 1);
  EXPECT_EQ(reports[0].schedules(0).batches(0).tensors(0).name(), "s");
  EXPECT_EQ(OverReport(absl::AbortedError("over"), {}).over(), "over");
}

TEST_F(WorkerGenerationTest, ALargeReportComesInParts) {
  for (int64_t position = 1; position <= 3; ++position) {
    v1::CoordinatorMessage message;
    message.set_position(position);
    message.mutable_plan()->add_batches()->add_tensors(std::string(200 << 10, 'x'));
    generation_.heard.Keep(std::move(message));
  }
  const auto reports = ResumeReportsOf(generation_, 0);
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_TRUE(reports[0].more() && reports[1].more() && !reports[2].more());
}

TEST_F(WorkerGenerationTest, ATraceEndsWithTheLastRepetitionThatIsWanted) {
  ASSERT_THAT(Schedule("s"), IsOk());
  RequestedTrace trace;
  const auto say = [&](v1::TraceAction action, int64_t until) {
    v1::Trace message;
    message.set_id(1);
    message.set_action(action);
    message.set_lane(kFirstScheduleLane);
    message.set_until_cycle(until);
    const WorkerTurn turn = Turn();
    trace.On(message, {turn, generation_.schedules, session_});
  };
  say(v1::TRACE_ACTION_BEGIN, 0);
  EXPECT_EQ(All<TraceBegin>().size(), 1u);
  say(v1::TRACE_ACTION_UNTIL, 1);
  EXPECT_TRUE(All<TraceEnd>().empty());
  generation_.schedules.NoteMark({LaneId{kFirstScheduleLane}, 1}, {}, kStart);
  const WorkerTurn turn = Turn();
  trace.EndWhenComplete({turn, generation_.schedules, session_});
  trace.End(/*send=*/false, {turn, generation_.schedules, session_});
  ASSERT_EQ(All<TraceEnd>().size(), 1u);
  EXPECT_TRUE(All<TraceEnd>()[0].send);
  EXPECT_EQ(All<TraceEnd>()[0].until_cycle, 1);
}

}  // namespace
}  // namespace coordd
