#include "client/coordrun/plan/coordinator_view.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/start_time.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kRank1[] = "rank 1 (host vm, pid 101) failed: ValueError: bad batch";

class CoordinatorViewTest : public ::testing::Test {
 protected:
  CoordinatorViewTest() {
    options_.np = 3;
    report_.job = "train";
    report_.pids = {100, 101, 102};
    report_.tails.resize(3);
    job_ = state_.add_jobs();
    job_->set_name("train");
    job_->set_batches_total(21);
  }

  v1::Departure& Departed(int32_t rank, int32_t pid, v1::DepartureCause cause,
                          const std::string& detail) {
    v1::Departure& departure = *job_->add_departures();
    departure.set_rank(rank);
    departure.set_hostname("vm");
    departure.set_pid(pid);
    departure.set_cause(cause);
    departure.set_detail(detail);
    departure.set_launch(absl::StrCat("run-", pid - 100));
    return departure;
  }

  RunOptions options_;
  RunReport report_;
  v1::ServerState state_;
  v1::JobState* job_;
  const std::vector<std::string> launches_ = {"run-0", "run-1", "run-2"};
};

TEST_F(CoordinatorViewTest, WhoFailedBecauseOfAnotherIsCounted) {
  Departed(1, 101, v1::DEPARTURE_CAUSE_PROGRAM_FAILED, "failed: ValueError: bad batch");
  Departed(-1, 100, v1::DEPARTURE_CAUSE_PROGRAM_FAILED,
           absl::StrCat("failed: HorovodInternalError: generation 1 ended: ", kRank1));
  EXPECT_THAT(DescribeView(state_, "train"),
              ElementsAre(kRank1, "1 other worker failed because of it"));
}

TEST_F(CoordinatorViewTest, SoIsAGoodbyeThatOthersFailedBy) {
  Departed(0, 100, v1::DEPARTURE_CAUSE_LEFT, "left: shut down by its program");
  EXPECT_THAT(DescribeView(state_, "train"), IsEmpty());
  Departed(1, 101, v1::DEPARTURE_CAUSE_PROGRAM_FAILED,
           "failed: generation 1 ended: rank 0 (host vm, pid 100) left: shut down by its program");
  EXPECT_THAT(DescribeView(state_, "train"),
              ElementsAre("rank 0 (host vm, pid 100) left: shut down by its program",
                          "1 other worker failed because of it"));
}

TEST_F(CoordinatorViewTest, WhatIsLearntLaterTakesThePlaceOfWhatWasKnown) {
  v1::Departure& first =
      Departed(1, 101, v1::DEPARTURE_CAUSE_PROGRAM_FAILED, "failed: ValueError: bad batch");
  AddView(state_, "train", launches_, &report_);
  first.set_detail("failed: ValueError: bad batch; it exited with status 1");
  AddView(state_, "train", launches_, &report_);
  EXPECT_THAT(report_.coordinator_view,
              ElementsAre(absl::StrCat(kRank1, "; it exited with status 1")));
  EXPECT_EQ(report_.batches, 21);
}

TEST_F(CoordinatorViewTest, AnotherRunsJobOfThatNameIsNotOurs) {
  Departed(1, 101, v1::DEPARTURE_CAUSE_PROGRAM_FAILED, "failed: ValueError: bad batch")
      .set_launch("other-1");
  AddView(state_, "train", launches_, &report_);
  EXPECT_THAT(report_.coordinator_view, IsEmpty());
  EXPECT_EQ(report_.batches, 0);
  AddView(state_, "train", {"", "", ""}, &report_);  // under mpirun
  EXPECT_EQ(report_.batches, 21);
}

// torch.distributed's groups are jobs of their own.
TEST(JoinGroups, MakesOneJobOfTheRunsInTheOrderInWhichTheyEnded) {
  v1::ServerState state;
  const auto add = [&state](const char* name, v1::JobPhase phase, double seconds,
                            const char* launch, int64_t bytes) {
    v1::JobState& job = *state.add_jobs();
    job.set_name(name);
    job.set_phase(phase);
    job.set_seconds_in_phase(seconds);
    job.add_departures()->set_launch(launch);
    job.set_bytes_total(bytes);
  };
  add("train.group-a", v1::JOB_PHASE_BROKEN, 1, "r.1", 4);
  add("train.group-b", v1::JOB_PHASE_ENDED, 2, "r.0", 30);
  add("train.group-c", v1::JOB_PHASE_ENDED, 7, "r.0", 200);
  add("train", v1::JOB_PHASE_ENDED, 3, "r.0", 17);
  add("train.v2", v1::JOB_PHASE_RUNNING, 9, "other", 1000);
  add("trainer", v1::JOB_PHASE_RUNNING, 9, "r.0", 1000);
  JoinGroups("train", {"r.0", "r.1"}, &state);
  ASSERT_EQ(state.jobs_size(), 3);
  const v1::JobState& whole = state.jobs(0);
  EXPECT_EQ(whole.name(), "train");
  EXPECT_EQ(whole.phase(), v1::JOB_PHASE_BROKEN);
  EXPECT_EQ(whole.bytes_total(), 4 + 30 + 200 + 17);
  ASSERT_EQ(whole.departures_size(), 4);
  EXPECT_EQ(whole.departures(3).launch(), "r.1");
  EXPECT_EQ(state.jobs(1).name(), "train.v2");
  EXPECT_EQ(state.jobs(2).name(), "trainer");
}

TEST(JoinGroups, LeavesAJobWithoutGroupsAlone) {
  v1::ServerState state;
  state.add_jobs()->set_name("train");
  state.mutable_jobs(0)->set_bytes_total(7);
  const std::string before = state.SerializeAsString();
  JoinGroups("train", {"", ""}, &state);
  EXPECT_EQ(state.SerializeAsString(), before);
}

TEST_F(CoordinatorViewTest, NamesWhoLeftWhileOthersWaited) {
  RunState run(options_, kStart);
  Departed(0, 100, v1::DEPARTURE_CAUSE_LEFT, "left: shut down by its program");
  run.WorkerEnded(0, {}, kStart);
  EXPECT_EQ(EarlyGoodbye(state_, options_, run, launches_, report_), "");
  run.WorkerEnded(2, {.code = 1, .signal = 0}, kStart + absl::Seconds(2));
  report_.tails[2] = {"raise failure",
                      "Error: tensor allreduce.a: generation 1 ended: rank 0 (host vm, "
                      "pid 100) left: shut down by its program"};
  report_.early_goodbye = EarlyGoodbye(state_, options_, run, launches_, report_);
  EXPECT_EQ(
      EndingText(options_, run, report_),
      "rank 0 (pid 100) ended with status 0 while others waited for it in allreduce.a, and rank "
      "2 (pid 102) failed for it: it exited with status 1 after 2.0 s");
  // An error of its own, when all had said goodbye.
  report_.tails[2] = {"OSError: disk full"};
  EXPECT_EQ(EarlyGoodbye(state_, options_, run, launches_, report_), "");
}

}  // namespace
}  // namespace coordd
