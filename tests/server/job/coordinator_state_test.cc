#include "server/job/coordinator_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/protocol/protocol_bounds.h"
#include "tests/server/support/builders.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr Epoch kEpoch{5};

// A coordinator and workers of job "train", numbered as their sessions.
class CoordinatorStateTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_THAT(state().CheckConsistency(), IsOk()); }

  CoordinatorState& state() {
    if (state_ == nullptr) state_ = std::make_unique<CoordinatorState>(options_, kEpoch);
    return *state_;
  }

  Effects Do(const Inbound& in) {
    Effects effects;
    state().Step(in, now_, effects);
    state().Tick(now_, effects);
    return effects;
  }
  Effects Join(int64_t session, int32_t size, const std::string& job = "train") {
    v1::WorkerMessage message;
    *message.mutable_join() = JoinOf(absl::StrCat("w", session));
    message.mutable_join()->set_job(job);
    message.mutable_join()->mutable_limits()->set_min_workers(size);
    message.mutable_join()->mutable_limits()->set_max_workers(size);
    return Do(SessionMessage{SessionId{session}, message});
  }
  Effects Ready(int64_t session, const std::vector<TensorSpec>& specs, int64_t generation = 1) {
    v1::WorkerMessage message = MessageOf(kEpoch, Generation{generation});
    for (const TensorSpec& spec : specs) {
      ToProto(spec, message.mutable_tensors_ready()->add_tensors());
    }
    return Do(SessionMessage{SessionId{session}, message});
  }
  Effects Pass(absl::Duration duration) {
    now_ += duration;
    Effects effects;
    state().Tick(now_, effects);
    return effects;
  }

  static std::vector<v1::CoordinatorMessage> To(int64_t session, const Effects& effects) {
    std::vector<v1::CoordinatorMessage> messages;
    for (const Outgoing& out : effects.outgoing) {
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver == nullptr) continue;
      for (SessionId to : deliver->to) {
        if (to == SessionId{session}) messages.push_back(*deliver->message);
      }
    }
    return messages;
  }
  static absl::Status ClosedWith(int64_t session, const Effects& effects) {
    for (const Outgoing& out : effects.outgoing) {
      const auto* close = std::get_if<CloseSession>(&out);
      if (close != nullptr && close->session == SessionId{session}) return close->status;
    }
    return absl::UnknownError("not closed");
  }

  ServerOptions options_;
  absl::Time now_ = kStart;
  std::unique_ptr<CoordinatorState> state_;
};

TEST_F(CoordinatorStateTest, MessagesCarryEpochAndGeneration) {
  const Effects effects = Join(1, 1);
  const auto messages = To(1, effects);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].epoch(), ToInt(kEpoch));
  EXPECT_EQ(messages[0].generation(), 1);
  EXPECT_EQ(messages[0].sequence(), 0);  // the session counts
  EXPECT_EQ(messages[0].membership().session(), 1);
}

TEST_F(CoordinatorStateTest, FusesWhatCameInBeforeOneTick) {
  Join(1, 1);
  Effects effects;
  for (const char* name : {"a", "b"}) {
    v1::WorkerMessage message = MessageOf(kEpoch, Generation{1});
    ToProto(Gradient(name, {1}), message.mutable_tensors_ready()->add_tensors());
    state().Step(SessionMessage{SessionId{1}, message}, now_, effects);
  }
  EXPECT_TRUE(effects.outgoing.empty());
  EXPECT_LE(state().NextDeadline(), now_);
  state().Tick(now_, effects);
  const auto messages = To(1, effects);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].plan().batches_size(), 1);
  EXPECT_EQ(effects.events.back().negotiation.size(), 2u);
}

TEST_F(CoordinatorStateTest, SplitsALongPlanIntoMessagesThatFit) {
  Join(1, 2);
  Join(2, 2);
  std::vector<std::vector<TensorSpec>> parts(6);
  int number = 0;
  for (auto& part : parts) {
    for (int i = 0; i < 400; ++i) {
      std::string name = absl::StrCat("t", number++);
      name.resize(512, 'x');
      part.push_back(InGroup(Gradient(name, {1}), "all", 2400));
    }
  }
  for (const auto& part : parts) Ready(1, part);
  Effects last;
  for (const auto& part : parts) last = Ready(2, part);
  int64_t sequence = 0;
  int tensors = 0;
  const auto messages = To(1, last);
  EXPECT_GT(messages.size(), 1u);
  for (const v1::CoordinatorMessage& message : messages) {
    EXPECT_LT(message.ByteSizeLong(), size_t{1} << 20);
    for (const v1::FusedBatch& batch : message.plan().batches()) {
      EXPECT_EQ(batch.sequence(), ++sequence);
      tensors += batch.tensors_size();
    }
  }
  EXPECT_EQ(tensors, 2400);
}

TEST_F(CoordinatorStateTest, IgnoresASessionThatItHasClosed) {
  v1::WorkerMessage message = MessageOf(kEpoch, Generation{1});
  message.mutable_heartbeat();
  EXPECT_EQ(ClosedWith(1, Do(SessionMessage{SessionId{1}, message})).code(),
            Code::kInvalidArgument);
  EXPECT_TRUE(Join(1, 1).outgoing.empty());
  Do(SessionEnded{SessionId{1}, ""});
  EXPECT_EQ(To(1, Join(1, 1)).size(), 1u);  // an id that the shell uses again
}

TEST_F(CoordinatorStateTest, AMessageBeyondItsBoundExpelsItsSender) {
  Join(1, 2);
  Join(2, 2);
  v1::WorkerMessage message = MessageOf(kEpoch, Generation{1});
  message.mutable_leave()->set_reason(std::string(kMaxReasonBytes + 1, 'x'));
  const Effects effects = Do(SessionMessage{SessionId{1}, message});
  EXPECT_THAT(ClosedWith(1, effects), StatusIs(Code::kInvalidArgument, HasSubstr("reason")));
  const auto messages = To(2, effects);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_TRUE(messages[0].abort().in_flight());
  EXPECT_EQ(messages[0].abort().departures(0).cause(), v1::DEPARTURE_CAUSE_PROTOCOL_ERROR);
}

TEST_F(CoordinatorStateTest, AnUnknownDtypeFailsTheTensorNotTheWorker) {
  Join(1, 1);
  v1::WorkerMessage message = MessageOf(kEpoch, Generation{1});
  ToProto(Gradient("a", {1}), message.mutable_tensors_ready()->add_tensors());
  message.mutable_tensors_ready()->mutable_tensors(0)->set_dtype(static_cast<v1::DataType>(77));
  const auto messages = To(1, Do(SessionMessage{SessionId{1}, message}));
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_THAT(messages[0].tensor_failures().failures(0).message(), HasSubstr("dtype 77"));
}

TensorSpec Refused(const std::string& name) {
  TensorSpec spec = Gradient(name, {});
  spec.kind = CollectiveKind::kBarrier;
  spec.op = ReduceOp::kNone;
  spec.refused = "the tensor is on device meta";
  return spec;
}

TEST_F(CoordinatorStateTest, WhatOneRankHasRefusedFailsOnTheOthersAtOnce) {
  for (int64_t session : {1, 2, 3}) Join(session, 3);
  Ready(1, {Gradient("a", {4})});
  const Effects effects = Ready(3, {Refused("a")});
  for (int64_t session : {1, 3}) {
    const auto messages = To(session, effects);
    ASSERT_EQ(messages.size(), 1u);
    const v1::TensorFailure& failure = messages[0].tensor_failures().failures(0);
    EXPECT_EQ(failure.message(),
              "tensor a: rank 2 refused its own call of it: the tensor is on device meta");
    EXPECT_EQ(failure.rank(), 2);
  }
  EXPECT_TRUE(To(2, effects).empty());
  const auto late = To(2, Ready(2, {Gradient("a", {4})}));
  ASSERT_EQ(late.size(), 1u);
  EXPECT_THAT(late[0].tensor_failures().failures(0).message(), HasSubstr("rank 2 refused"));
  // They are in step: the next one is planned.
  Ready(1, {Gradient("a", {4})});
  Ready(2, {Gradient("a", {4})});
  EXPECT_EQ(To(1, Ready(3, {Gradient("a", {4})}))[0].plan().batches_size(), 1);
}

TEST_F(CoordinatorStateTest, WhatAllRanksHaveRefusedLeavesNothingBehind) {
  Join(1, 2);
  Join(2, 2);
  std::vector<TensorSpec> refused, good;
  for (const char* name : {"g_1of2", "g_2of2"}) {
    refused.push_back(InGroup(Refused(name), "g", 2));
    good.push_back(InGroup(Gradient(name, {4}), "g", 2));
  }
  for (int64_t session : {1, 2}) {
    const auto messages = To(session, Ready(session, refused));
    ASSERT_EQ(messages.size(), 1u);
    EXPECT_EQ(messages[0].tensor_failures().failures_size(), 2);
  }
  Ready(1, good);
  EXPECT_TRUE(To(2, Ready(2, good))[0].has_plan());
  // A barrier is no such call.
  TensorSpec barrier = Refused("b");
  Ready(1, {barrier});
  barrier.refused.clear();
  EXPECT_TRUE(To(2, Ready(2, {barrier}))[0].has_tensor_failures());
}

TEST_F(CoordinatorStateTest, TellsARankWhenItHasTooManyTensorsPending) {
  options_.max_pending_tensors_per_job = 2;
  Join(1, 2);
  Join(2, 2);
  const auto messages =
      To(1, Ready(1, {Gradient("a", {1}), Gradient("b", {1}), Gradient("c", {1})}));
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].tensor_failures().failures(0).code(),
            static_cast<int>(Code::kResourceExhausted));
}

TEST_F(CoordinatorStateTest, RefusesAnEmptyOrTooLongTensorNameByClosing) {
  Join(1, 1);
  EXPECT_EQ(ClosedWith(1, Ready(1, {Gradient("", {1})})).code(), Code::kInvalidArgument);
}

TEST_F(CoordinatorStateTest, ForgetsAnEndedJobAfterItsRetentionButNotItsGenerations) {
  Join(1, 1);
  Do(SessionEnded{SessionId{1}, ""});
  EXPECT_EQ(state().NextDeadline(), now_ + absl::Hours(1));
  Pass(absl::Hours(1));
  v1::ServerState description;
  state().Describe("", now_, &description);
  EXPECT_EQ(description.jobs_size(), 0);
  EXPECT_EQ(To(2, Join(2, 1))[0].generation(), 2);
}

// The state of a thousand jobs would be a turn of a tenth of a second.
TEST_F(CoordinatorStateTest, AllJobsAreDescribedInPartsWhileOthersCome) {
  constexpr int kJobs = 150, kWorkers = 50;
  int64_t session = 0;
  for (int job = 0; job < kJobs; ++job)
    for (int worker = 0; worker < kWorkers; ++worker)
      Join(++session, kWorkers, absl::StrCat("job", 100 + job));
  v1::ServerState whole, together;
  state().Describe("", now_, &whole);
  std::string last;
  int parts = 0;
  do {
    v1::ServerState part;
    last = state().DescribeNext(last, now_, &part);
    EXPECT_LT(part.ByteSizeLong(), CoordinatorState::kDescribedInTurn * 5 / 4);
    EXPECT_EQ(part.epoch(), whole.epoch());
    for (const v1::JobState& job : part.jobs()) *together.add_jobs() = job;
    if (parts++ > 0) continue;
    Join(++session, 1, "a-job-before");
    Join(++session, 1, "one-behind");
    Do(SessionEnded{SessionId{1}, "lost"});  // of a job that was told
  } while (!last.empty());
  EXPECT_GE(parts, 2);
  ASSERT_EQ(together.jobs_size(), kJobs + 1);
  EXPECT_EQ(together.jobs(kJobs).name(), "one-behind");
  together.mutable_jobs()->RemoveLast();
  EXPECT_EQ(together.jobs(0).SerializeAsString(), whole.jobs(0).SerializeAsString());
  for (int job = 0; job < kJobs; ++job)
    EXPECT_EQ(together.jobs(job).name(), whole.jobs(job).name());
}

TEST_F(CoordinatorStateTest, ForgetsAnEndedJobEarlyForANewOne) {
  options_.max_jobs = 2;
  Join(1, 1, "first");
  Join(2, 1, "second");
  EXPECT_EQ(ClosedWith(3, Join(3, 1, "third")).code(), Code::kResourceExhausted);
  Do(SessionEnded{SessionId{1}, ""});
  EXPECT_EQ(To(4, Join(4, 1, "third")).size(), 1u);
  v1::ServerState description;
  state().Describe("", now_, &description);
  ASSERT_EQ(description.jobs_size(), 2);
  EXPECT_EQ(description.jobs(0).name(), "second");
}

TEST_F(CoordinatorStateTest, ARefusedFirstJoinLeavesNoJobBehind) {
  v1::WorkerMessage message;
  *message.mutable_join() = JoinOf("a");
  message.mutable_join()->mutable_limits()->set_min_workers(1 << 30);
  EXPECT_EQ(ClosedWith(1, Do(SessionMessage{SessionId{1}, message})).code(),
            Code::kFailedPrecondition);
  v1::ServerState description;
  state().Describe("", now_, &description);
  EXPECT_EQ(description.jobs_size(), 0);
}

TEST_F(CoordinatorStateTest, AnAbortNamesAtMostSixtyFourDepartures) {
  for (int64_t id = 1; id <= 200; ++id) Join(id, 200);
  v1::WorkerMessage leave = MessageOf(kEpoch, Generation{1});
  leave.mutable_leave();
  for (int64_t id = 1; id <= 100; ++id) Do(SessionMessage{SessionId{id}, leave});
  const auto messages = To(200, Do(SessionEnded{SessionId{101}, ""}));
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].abort().departures_size(), 64);
  EXPECT_EQ(messages[0].abort().departures(63).cause(), v1::DEPARTURE_CAUSE_CONNECTION_LOST);
}

// Also while a worker only waits: it may lose patience, too, and be a member when it comes back.
TEST_F(CoordinatorStateTest, LooksAtTheClockOftenEnoughToNoticeItsOwnSleep) {
  Join(1, 2);  // waits for a second one
  EXPECT_LE(state().NextDeadline(), now_ + options_.lease / 4);
  Join(2, 2);
  EXPECT_LE(state().NextDeadline(), now_ + options_.lease / 4);
}

TEST_F(CoordinatorStateTest, RestsWhenNobodyIsThere) {
  state();
  EXPECT_EQ(state().NextDeadline(), absl::InfiniteFuture());
  Join(1, 2);
  Do(SessionEnded{SessionId{1}, ""});
  EXPECT_GE(state().NextDeadline(), now_ + options_.ended_job_retention);
}

TEST_F(CoordinatorStateTest, RemembersWhatAJobHasReducedWhenItsGenerationIsGone) {
  for (const int64_t generation : {1, 2}) {
    const int64_t first = generation * 10, second = first + 1;
    for (const int64_t session : {first, second}) Join(session, 2);
    for (const int64_t session : {first, second}) Ready(session, {Gradient("a", {10})}, generation);
    v1::WorkerMessage leave = MessageOf(kEpoch, Generation{generation});
    leave.mutable_leave();
    for (const int64_t session : {first, second}) Do(SessionMessage{SessionId{session}, leave});
    v1::ServerState description;
    state().Describe("train", now_, &description);
    EXPECT_EQ(description.jobs(0).batches_planned(), 0);
    EXPECT_EQ(description.jobs(0).batches_total(), generation);
    EXPECT_EQ(description.jobs(0).bytes_total(), generation * 40);
  }
}

TEST_F(CoordinatorStateTest, ForgetsAnEarlierRunOfTheSameNameWhereItsLauncherTellsThemApart) {
  int64_t session = 0, generation = 0;
  const auto departures = [&](const std::string& launch) {
    ++session;
    v1::WorkerMessage message;
    *message.mutable_join() = JoinOf(absl::StrCat("w", session));
    message.mutable_join()->set_launch(launch);
    message.mutable_join()->mutable_limits()->set_min_workers(1);
    message.mutable_join()->mutable_limits()->set_max_workers(1);
    Do(SessionMessage{SessionId{session}, message});
    Ready(session, {Gradient("a", {10})}, ++generation);
    Do(SessionEnded{SessionId{session}, "is gone"});
    Pass(absl::Seconds(1));  // its launcher may know more
    v1::ServerState description;
    state().Describe("train", now_, &description);
    EXPECT_EQ(description.jobs(0).batches_total(), description.jobs(0).departures_size());
    return description.jobs(0).departures_size();
  };
  EXPECT_EQ(departures("abc.0.0"), 1);
  EXPECT_EQ(departures("abc.0.1"), 2) << "it was started again";
  EXPECT_EQ(departures("abc-3.0.0"), 3) << "by another agent";
  EXPECT_EQ(departures("def.0.0"), 1);
  EXPECT_EQ(departures(""), 2) << "nobody can tell";
}

TEST_F(CoordinatorStateTest,
       DescribesDevicesAndEdgesThatAHeartbeatHasToldOfUntilTheNextGeneration) {
  v1::WorkerMessage join;
  *join.mutable_join() = JoinOf("w1");
  join.mutable_join()->mutable_limits()->set_min_workers(1);
  join.mutable_join()->mutable_limits()->set_max_workers(1);
  join.mutable_join()->set_on_failure(v1::ON_FAILURE_RAISE);
  Do(SessionMessage{SessionId{1}, join});
  const auto beat = [this](const char* nccl) {
    v1::WorkerMessage message = MessageOf(kEpoch, Generation{1});
    message.mutable_heartbeat();
    if (*nccl != 0) message.mutable_heartbeat()->mutable_device_use()->set_nccl(nccl);
    if (*nccl != 0) message.mutable_heartbeat()->mutable_host_edges()->set_within_node("mapped");
    Do(SessionMessage{SessionId{1}, message});
  };
  const auto worker = [this] {
    v1::ServerState description;
    state().Describe("train", now_, &description);
    return description.jobs(0).workers(0);
  };
  beat("");
  EXPECT_FALSE(worker().has_device_use());
  EXPECT_FALSE(worker().has_host_edges());
  beat("2.27.1");
  beat("2.28.9");
  beat("");
  EXPECT_EQ(worker().device_use().nccl(), "2.28.9");
  EXPECT_EQ(worker().host_edges().within_node(), "mapped");
  v1::WorkerMessage change = MessageOf(kEpoch, Generation{1});
  change.mutable_change_members();
  Do(SessionMessage{SessionId{1}, change});
  v1::WorkerMessage report = MessageOf(kEpoch, Generation{1});
  report.mutable_recovery_report();
  Do(SessionMessage{SessionId{1}, report});
  Pass(absl::Seconds(10));
  EXPECT_EQ(worker().rank(), 0);
  EXPECT_FALSE(worker().has_device_use());
  EXPECT_FALSE(worker().has_host_edges());
}

TEST_F(CoordinatorStateTest, DescribesThroughputOfTheSlowestRank) {
  Join(1, 2);
  Join(2, 2);
  for (int beat = 0; beat < 3; ++beat) {
    for (int64_t session : {1, 2}) {
      v1::WorkerMessage message = MessageOf(kEpoch, Generation{1});
      message.mutable_heartbeat()->set_bytes_reduced(beat * 1000 * session);
      Do(SessionMessage{SessionId{session}, message});
    }
    Pass(absl::Seconds(2));
  }
  v1::ServerState description;
  state().Describe("train", now_, &description);
  EXPECT_DOUBLE_EQ(description.jobs(0).bytes_per_second(), 500);
  EXPECT_DOUBLE_EQ(description.jobs(0).workers(0).seconds_since_heard(), 2);
}

}  // namespace
}  // namespace coordd
