#include "client/coordrun/plan/pod_part.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

// Two pods, the second; how many there are is said.
const Environment kPods[] = {
    {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"PET_MASTER_ADDR", "train-node-0-0.train"}},
    {{"LWS_LEADER_ADDRESS", "train-0"}, {"LWS_WORKER_INDEX", "1"}, {"LWS_GROUP_SIZE", "2"}},
    {{"VC_TASK_INDEX", "1"}, {"VC_WORKER_NUM", "2"}},
    {{"AWS_BATCH_JOB_NODE_INDEX", "1"},
     {"AWS_BATCH_JOB_NUM_NODES", "2"},
     {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "10.0.0.7"}}};

Environment IndexedJob(int index) {
  return {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}, {"JOB_COMPLETION_INDEX", std::to_string(index)}};
}

PlanInputs In(const Environment& environment, const std::string& hostname = "train-1") {
  PlanInputs inputs;
  inputs.environment = environment;
  inputs.hostname = hostname;
  const auto place = DetectLaunchPlace(environment, {}, "");
  EXPECT_THAT(place, IsOk());
  if (place.ok()) inputs.pod = PodOf(*place);
  return inputs;
}

RunOptions Train() {
  RunOptions options;
  options.command = {"python", "train.py"};
  options.np = 2;
  return options;
}

TEST(TakePart, MakesAJobOfAllPods) {
  for (Environment environment : kPods) {
    environment["COORDD_ADDR"] = "coordd:29650";
    const PlanInputs inputs = In(environment);
    ASSERT_TRUE(inputs.pod.has_value());
    SCOPED_TRACE(inputs.pod->launcher);
    RunOptions options = Train();
    ASSERT_THAT(TakePart(inputs, &options), IsOk());
    EXPECT_EQ(options.coordinator, "coordd:29650");
    EXPECT_EQ(options.size, 4);
    EXPECT_EQ(options.first_rank, 2);
    EXPECT_EQ(options.metrics, "auto");
    EXPECT_TRUE(options.pods.take_part());
    const auto plan = PlanRun(options, inputs);
    ASSERT_THAT(plan, IsOk());
    EXPECT_EQ(plan->launcher, LauncherKind::kLocal);
    EXPECT_EQ(plan->np, 2);
    EXPECT_THAT(plan->reason, HasSubstr("pod 1 of"));
  }
}

TEST(TakePart, TakesTheLaunchersFirstPodForCoordd) {
  RunOptions options = Train();
  ASSERT_THAT(TakePart(In(kPods[0]), &options), IsOk());
  EXPECT_EQ(options.coordinator, "train-node-0-0.train:29650");
  const Environment jobset = {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                              {"JOBSET_NAME", "train"},
                              {"REPLICATED_JOB_NAME", "workers"},
                              {"JOB_INDEX", "1"},
                              {"PROCESSES_IN_JOB", "2"},
                              {"JOB_COMPLETION_INDEX", "1"},
                              {"COORDD_SIZE", "8"}};
  options = Train();
  ASSERT_THAT(TakePart(In(jobset), &options), IsOk());
  EXPECT_EQ(options.coordinator, "train-workers-0-0.train:29650");
  EXPECT_EQ(options.first_rank, 6);
}

TEST(TakePart, StartsCoorddInTheFirstPod) {
  Environment environment = IndexedJob(0);
  environment["COORDD_SIZE"] = "4";
  environment["COORDD_ADDR"] = "train-0.train:29651";
  RunOptions options = Train();
  EXPECT_THAT(TakePart(In(environment, "train-0"), &options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("COORDD_TLS_CERT"), HasSubstr("--no-tls"))));
  options = Train();
  options.tls = false;
  ASSERT_THAT(TakePart(In(environment, "train-0"), &options), IsOk());
  EXPECT_EQ(options.coordinator, "");
  EXPECT_EQ(options.listen, "0.0.0.0:29651");
  EXPECT_EQ(options.pods.address, "train-0.train:29651");
  EXPECT_THAT(options.coordd_arguments, Contains("--insecure"));
  for (const char* name : {"COORDD_TLS_CA", "COORDD_TLS_CERT", "COORDD_TLS_KEY"})
    environment[name] = "/tls/file";
  options = Train();
  EXPECT_THAT(TakePart(In(environment, "train-0"), &options), IsOk());
  EXPECT_EQ(options.listen, "0.0.0.0:29651");
  // It is in none of the pods.
  options = Train();
  environment["COORDD_ADDR"] = "coordd:29650";
  ASSERT_THAT(TakePart(In(environment, "train-0"), &options), IsOk());
  EXPECT_EQ(options.coordinator, "coordd:29650");
}

TEST(TakePart, SaysWhatIsNotKnown) {
  RunOptions options = Train();
  EXPECT_THAT(TakePart(In(IndexedJob(1)), &options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("this is pod 1"), HasSubstr("how many pods there are"),
                             HasSubstr("COORDD_SIZE"), HasSubstr("2 * PODS"),
                             HasSubstr("--launcher local"))));
  Environment environment = IndexedJob(1);
  environment["COORDD_SIZE"] = "4";
  EXPECT_THAT(TakePart(In(environment), &options),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("COORDD_ADDR=HOST:29650")));
  environment["COORDD_ADDR"] = "coordd";
  EXPECT_THAT(TakePart(In(environment), &options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("COORDD_ADDR")));
  environment["COORDD_SIZE"] = "many";
  EXPECT_THAT(TakePart(In(environment), &options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("COORDD_SIZE is many")));
  environment["COORDD_SIZE"] = "3";
  EXPECT_THAT(TakePart(In(environment), &options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("ranks 2 to 3"), HasSubstr("the job has 3"))));
}

TEST(TakePart, RefusesNumbersThatCannotBeTheSameInEachPod) {
  Environment environment = IndexedJob(1);
  environment["COORDD_SIZE"] = "5";
  environment["COORDD_ADDR"] = "coordd:29650";
  RunOptions options = Train();
  EXPECT_THAT(TakePart(In(environment), &options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("this is pod 1"), HasSubstr("with -np 2"),
                             HasSubstr("the job has 5 workers"), HasSubstr("a multiple of it"))));
  options.min_np = 1;  // of an elastic job it is the most
  EXPECT_THAT(TakePart(In(environment), &options), IsOk());
  Environment counted = kPods[1];  // of two pods
  counted["COORDD_SIZE"] = "6";
  options = Train();
  EXPECT_THAT(TakePart(In(counted), &options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("COORDD_SIZE to be 2 * 2")));
}

TEST(TakePart, LetsTheJobHaveTheLimitsOfAnElasticOne) {
  Environment environment = IndexedJob(1);
  environment["COORDD_SIZE"] = "8";
  environment["COORDD_ADDR"] = "coordd:29650";
  RunOptions options = Train();
  options.min_np = 4;
  ASSERT_THAT(TakePart(In(environment), &options), IsOk());
  EXPECT_EQ(options.pods.min_workers, 4);
  EXPECT_EQ(options.min_np, 1);
  EXPECT_EQ(options.size, 8);
}

TEST(TakePart, LeavesAloneWhoSaysHow) {
  const PlanInputs inputs = In(IndexedJob(1));
  RunOptions local = Train();
  local.launcher = "local";
  EXPECT_THAT(TakePart(inputs, &local), IsOk());
  EXPECT_FALSE(local.pods.take_part());
  EXPECT_EQ(local.size, 0);
  RunOptions named = Train();
  named.coordinator = "elsewhere:1";
  EXPECT_THAT(TakePart(inputs, &named), IsOk());
  EXPECT_FALSE(named.pods.take_part());
  RunOptions alone = Train();
  EXPECT_THAT(TakePart(In({}), &alone), IsOk());
  EXPECT_FALSE(alone.pods.take_part());
}

}  // namespace
}  // namespace coordd
