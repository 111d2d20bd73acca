#include "client/coordctl/target_by_job.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

RunningCoordinator With(const std::string& listen, std::vector<std::string> jobs) {
  RunningCoordinator one;
  one.connection.listen = listen;
  one.connection.pid = 17;
  one.connection.tls.ca = "ca of " + listen;
  one.answers = true;
  one.jobs = std::move(jobs);
  return one;
}

TEST(ChooseByJob, TakesTheOneThatHasTheJob) {
  const auto target = ChooseByJob("eval", {With("h:1", {"train"}), With("h:2", {"a", "eval"})});
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->address, "h:2");
  EXPECT_EQ(target->tls.ca, "ca of h:2");
}

TEST(ChooseByJob, TakesTheOneThatHasAGroupOfTheJob) {
  const auto target =
      ChooseByJob("ddp", {With("h:1", {"ddpx"}), With("h:2", {"ddp.group-1f", "ddp.group-2a"})});
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->address, "h:2");
}

TEST(ChooseByJob, SaysWhichJobsEachHas) {
  RunningCoordinator mute = With("h:4", {});
  mute.answers = false;
  const std::vector<RunningCoordinator> running = {With("h:1", {"train"}), With("h:2", {}),
                                                   With("h:3", {"a", "b", "c", "d", "e", "train"}),
                                                   mute};
  EXPECT_THAT(ChooseByJob("", running),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("4 coordds of yours run on this machine: h:1 (pid 17, job train), "
                                 "h:2 (pid 17, no job), h:3 (pid 17, jobs a, b, c, d and 2 more), "
                                 "h:4 (pid 17, which does not answer); name the job, or one")));
  EXPECT_THAT(ChooseByJob("other", running),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("; none has a job other")));
  EXPECT_THAT(ChooseByJob("train", running),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("; 2 have a job train: ")));
}

TEST(JobOrItsGroup, IsTheGroupThatRunsWhereThereIsNoSuchJob) {
  v1::ServerState state;
  EXPECT_EQ(JobOrItsGroup(state, "ddp"), "ddp");
  state.add_jobs()->set_name("ddp.group-1");
  state.mutable_jobs(0)->set_phase(v1::JOB_PHASE_ENDED);
  EXPECT_EQ(JobOrItsGroup(state, "ddp"), "ddp");
  state.add_jobs()->set_name("ddp.group-2");
  state.mutable_jobs(1)->set_phase(v1::JOB_PHASE_RUNNING);
  EXPECT_EQ(JobOrItsGroup(state, "ddp"), "ddp.group-2");
  state.add_jobs()->set_name("ddp");
  EXPECT_EQ(JobOrItsGroup(state, "ddp"), "ddp");
}

}  // namespace
}  // namespace coordd
