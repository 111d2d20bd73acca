#include "client/coordrun/plan/thread_share.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

RunPlan PlanOf(LauncherKind launcher, int32_t np) {
  RunPlan plan;
  plan.launcher = launcher;
  plan.np = np;
  return plan;
}

TEST(ThreadShare, IsThatOfTheCoresAndAtLeastOne) {
  EXPECT_EQ(ThreadsEach(8, 2), 4);
  EXPECT_EQ(ThreadsEach(8, 3), 2);
  EXPECT_EQ(ThreadsEach(2, 8), 1);
  EXPECT_EQ(ThreadsEach(0, 2), 1);  // not known
}

TEST(ThreadShare, IsNotSaidToAWorkerThatHasTheHostForItself) {
  EXPECT_EQ(ThreadsEach(8, 1), 0);
  EXPECT_EQ(ThreadsOfTask(8, 1, 8), 0);
  EXPECT_THAT(ThreadVariables(0, {}), IsEmpty());
}

TEST(ThreadShare, KnowsTasksWithCoresOfTheirOwn) {
  EXPECT_EQ(ThreadsOfTask(/*cores=*/4, /*workers=*/2, /*node_cores=*/8), 4);
  EXPECT_EQ(ThreadsOfTask(/*cores=*/8, /*workers=*/2, /*node_cores=*/8), 4);
}

TEST(ThreadShare, NeverOverwrites) {
  EXPECT_THAT(ThreadVariables(4, {}), ElementsAre(Pair("OMP_NUM_THREADS", "4")));
  EXPECT_THAT(ThreadVariables(4, {{"OMP_NUM_THREADS", "7"}}), IsEmpty());
  EXPECT_THAT(ThreadVariables(4, {{"OMP_NUM_THREADS", ""}}), IsEmpty());
}

TEST(ThreadShare, IsSaidInALine) {
  RunOptions options;
  const RunPlan two = PlanOf(LauncherKind::kLocal, 2);
  EXPECT_EQ(ThreadsNote(options, two, {}, 8),
            "OMP_NUM_THREADS=4 for each worker: its share of 8 cores (-x OMP_NUM_THREADS=N for "
            "another)");
  EXPECT_THAT(ThreadsNote(options, PlanOf(LauncherKind::kMpirun, 2), {}, 8),
              HasSubstr("its share of its host's cores"));
  EXPECT_THAT(ThreadsNote(options, PlanOf(LauncherKind::kLocal, 1), {}, 8), IsEmpty());
  EXPECT_THAT(ThreadsNote(options, PlanOf(LauncherKind::kExternal, 2), {}, 8), IsEmpty());
  EXPECT_THAT(
      ThreadsNote(options, PlanOf(LauncherKind::kSrun, 2), {{"SLURM_JOB_NUM_NODES", "2"}}, 8),
      IsEmpty());
  EXPECT_THAT(ThreadsNote(options, two, {{"OMP_NUM_THREADS", "1"}}, 8), IsEmpty());
  options.variables = {{"OMP_NUM_THREADS", "2"}};
  EXPECT_THAT(ThreadsNote(options, two, {}, 8), IsEmpty());
  options.variables.clear();
  options.torch_env = false;
  EXPECT_THAT(ThreadsNote(options, two, {}, 8), IsEmpty());
}

}  // namespace
}  // namespace coordd
