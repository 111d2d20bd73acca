#include "client/coordrun/run_plan.h"

#include "client/coordrun/slot_book.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const Environment kBatchScript = {{"SLURM_JOB_ID", "7"},
                                  {"SLURM_NTASKS", "6"},
                                  {"SLURM_JOB_NUM_NODES", "2"},
                                  {"SLURM_PROCID", "0"}};

std::vector<HostSlots> Found(const std::string& text) {
  const auto hosts = ParseDiscovered(text, 2);
  return hosts.ok() ? *hosts : std::vector<HostSlots>();
}

TEST(SlotBook, KeepsWhoIsThereAndFillsHostsInOrder) {
  EXPECT_EQ(SlotsOf(Found("a:1\n\n b \nc:0\n")), 3);
  EXPECT_FALSE(ParseDiscovered("a:many", 2).ok());
  SlotBook book(3);
  EXPECT_THAT(book.Update(Found("a:2\nb:2")).start, ElementsAre(0, 1, 2));
  EXPECT_THAT(book.Update(Found("b:2\na:2")).start, IsEmpty());
  // Room is for whoever is there already, then in the order in which they are told.
  const SlotChange gone = book.Update(Found("c:1\nb:2\na:1"));
  EXPECT_THAT(gone.end, ElementsAre(1));
  EXPECT_THAT(gone.start, ElementsAre(3));
  EXPECT_EQ(book.slots()[3].host, "c");
  EXPECT_THAT(gone.sentences, ElementsAre("host c is there: rank 3", "host a is gone: rank 1"));
  // A host that comes back has its slots again.
  EXPECT_THAT(book.Update(Found("b:2")).end, ElementsAre(0, 3));
  EXPECT_THAT(book.Update(Found("b:2\na:4")).start, ElementsAre(0));
  EXPECT_EQ(book.wanted(), 3);
  EXPECT_EQ(book.slots()[4].host, "b");
  EXPECT_EQ(book.slots()[4].local_rank, 1);
}

TEST(SlotBook, ADrainedSlotIsUsedAgainWhenItsHostComesAnew) {
  SlotBook book(2);
  EXPECT_THAT(book.Update(Found("a:1\nb:1\nc:1")).start, ElementsAre(0, 1));
  book.Drained(0);
  // Another host has the room.
  EXPECT_THAT(book.Update(Found("a:1\nb:1\nc:1")).start, ElementsAre(2));
  EXPECT_THAT(book.Update(Found("a:1\nb:1")).start, IsEmpty());
  EXPECT_THAT(book.Update(Found("b:1")).end, IsEmpty());
  EXPECT_THAT(book.Update(Found("a:1\nb:1")).start, ElementsAre(0));
}

RunOptions Options() {
  RunOptions options;
  options.command = {"train"};
  return options;
}

RunOptions Np(RunOptions options, int32_t np) {
  options.np = np;
  options.np_given = true;
  return options;
}

RunOptions On(const std::string& hosts) {
  RunOptions options = Options();
  options.hosts = hosts;
  return options;
}

RunOptions With(const std::string& launcher) {
  RunOptions options = Options();
  options.launcher = launcher;
  return options;
}

HostRanks Ranks(const std::string& host, int32_t first, int32_t count, bool here = false) {
  return {.host = host, .user = "", .here = here, .first_rank = first, .count = count};
}

absl::StatusOr<RunPlan> Plan(const RunOptions& options, Environment environment = {},
                             const std::string& hostfile = "") {
  return PlanRun(
      options,
      {.environment = std::move(environment), .hostname = "launch.cluster", .hostfile = hostfile});
}

void ExpectRefused(const RunOptions& options, const Environment& environment,
                   const std::string& text) {
  const auto plan = Plan(options, environment);
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr(text));
}

TEST(PlanRun, StartsWorkersHereWhenNothingElseIsSaid) {
  const auto plan = Plan(Np(Options(), 4));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->launcher, LauncherKind::kLocal);
  EXPECT_EQ(plan->np, 4);
}

TEST(PlanRun, FillsHostsInTheirOrder) {
  const auto all = Plan(On("h1:2,h2:3"));
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->launcher, LauncherKind::kSsh);
  EXPECT_EQ(all->np, 5);
  EXPECT_THAT(all->hosts, ElementsAre(Ranks("h1", 0, 2), Ranks("h2", 2, 3)));
  const auto some = Plan(Np(On("h1:2,h2:3,h3:1"), 3));
  ASSERT_TRUE(some.ok());
  EXPECT_THAT(some->hosts, ElementsAre(Ranks("h1", 0, 2), Ranks("h2", 2, 1)));
}

TEST(PlanRun, NeedsNoSshForThisMachine) {
  const auto mixed = Plan(On("launch:2,h2:1"));
  ASSERT_TRUE(mixed.ok());
  EXPECT_THAT(mixed->hosts, ElementsAre(Ranks("launch", 0, 2, true), Ranks("h2", 2, 1)));
  const auto alone = Plan(On("localhost:3"));
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->launcher, LauncherKind::kLocal);
  EXPECT_EQ(alone->np, 3);
  RunOptions forced = On("localhost:3");
  forced.launcher = "ssh";
  const auto ssh = Plan(forced);
  ASSERT_TRUE(ssh.ok());
  EXPECT_THAT(ssh->hosts, ElementsAre(Ranks("localhost", 0, 3)));
}

TEST(PlanRun, ReadsHostfilesOfOtherLaunchers) {
  RunOptions options = Options();
  options.hostfile = "hosts";
  const auto plan = Plan(options, {}, "# cluster\nh1 slots=4\nme@h2 slots=2\n");
  ASSERT_TRUE(plan.ok());
  ASSERT_THAT(plan->hosts, SizeIs(2));
  EXPECT_EQ(plan->hosts[1].user, "me");
  EXPECT_EQ(plan->np, 6);
}

TEST(PlanRun, TakesTheTasksOfAnAllocation) {
  const auto plan = Plan(Options(), kBatchScript);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->launcher, LauncherKind::kSrun);
  EXPECT_EQ(plan->np, 6);
  EXPECT_EQ(Plan(Np(Options(), 2), kBatchScript)->np, 2);
  Environment cores = kBatchScript;
  cores["SLURM_CPUS_PER_TASK"] = "8";
  EXPECT_EQ(Plan(Options(), cores)->cpus_per_task, 8);
  const auto nodes = Plan(Options(), {{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "3"}});
  EXPECT_EQ(nodes->np, 3) << "one for each node, as srun has it";
  EXPECT_EQ(Plan(With("local"), kBatchScript)->launcher, LauncherKind::kLocal);
  EXPECT_EQ(Plan(On("h1:2"), kBatchScript)->launcher, LauncherKind::kSsh);
}

TEST(PlanRun, KnowsTheShellOfSallocFromAStep) {
  Environment shell = kBatchScript;
  shell["SLURM_STEP_ID"] = "4294967290";
  shell["SLURM_STEP_NUM_TASKS"] = "1";
  EXPECT_EQ(Plan(Options(), shell)->launcher, LauncherKind::kSrun);
  Environment task = kBatchScript;
  task["SLURM_STEP_ID"] = "0";
  task["SLURM_STEP_NUM_TASKS"] = "4";
  ExpectRefused(Options(), task, "one of 4 tasks of a Slurm step");
  EXPECT_EQ(Plan(Np(Options(), 2), task)->launcher, LauncherKind::kLocal);
}

absl::StatusOr<RunPlan> PlanIn(const RunOptions& options, std::vector<HostSlots> hosts) {
  return PlanRun(options,
                 {.environment = {},
                  .hostname = "launch.cluster",
                  .hostfile = "",
                  .allocation = AllocatedHosts{.title = "PBS job 7", .hosts = std::move(hosts)}});
}

TEST(PlanRun, TakesTheHostsOfAJobWhoseSchedulerStartsNothing) {
  const std::vector<HostSlots> two = {{.host = "launch", .slots = 2}, {.host = "h2", .slots = 3}};
  const auto plan = PlanIn(Options(), two);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->launcher, LauncherKind::kSsh);
  EXPECT_EQ(plan->reason, "inside PBS job 7");
  EXPECT_THAT(plan->hosts, ElementsAre(Ranks("launch", 0, 2, true), Ranks("h2", 2, 3)));
  EXPECT_EQ(PlanIn(Np(Options(), 3), two)->np, 3);
  EXPECT_EQ(PlanIn(With("mpirun"), two)->np, 5);
  EXPECT_EQ(PlanIn(With("local"), two)->np, 1);
  EXPECT_THAT(PlanIn(On("h2:1"), two)->hosts, ElementsAre(Ranks("h2", 0, 1)));
  const auto more = PlanIn(Np(Options(), 6), two);
  ASSERT_FALSE(more.ok());
  EXPECT_THAT(std::string(more.status().message()), HasSubstr("PBS job 7 have 5 slots"));
}

TEST(PlanRun, TakesTheOnlyHostOfSuchAJobForAsManyWorkersAsAreAskedFor) {
  const auto plan = PlanIn(Np(Options(), 4), {{.host = "launch", .slots = 1}});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->launcher, LauncherKind::kLocal);
  EXPECT_EQ(plan->np, 4);
  EXPECT_EQ(PlanIn(Options(), {{.host = "launch", .slots = 8}})->np, 8);
}

TEST(AllocationOf, IsThatOfASchedulersJobScript) {
  LaunchPlace script;
  script.launcher = "lsf";
  script.title = "LSF";
  script.job_id = "7";
  script.hosts = {"h1", "h2"};
  script.host_slots = {4, 2};
  const auto allocation = AllocationOf(script);
  ASSERT_TRUE(allocation.has_value());
  EXPECT_EQ(allocation->title, "LSF job 7");
  EXPECT_THAT(allocation->hosts, ElementsAre(HostSlots{"h1", 4, 0, ""}, HostSlots{"h2", 2, 0, ""}));
  script.rank = 1;  // blaunch
  EXPECT_FALSE(AllocationOf(script).has_value());
  script.rank = -1;
  script.launcher = "slurm";
  EXPECT_FALSE(AllocationOf(script).has_value());
}

TEST(PlanRun, RefusesWhatDoesNotFit) {
  ExpectRefused(Np(On("h1:2,h2:2"), 8), {}, "the hosts have 4 slots (h1:2,h2:2)");
  ExpectRefused(Np(Options(), 257), {}, "expected 1 to 256");
  ExpectRefused(With("ssh"), {}, "-H HOST:SLOTS");
  ExpectRefused(With("srun"), {}, "sbatch or salloc");
  ExpectRefused(On("h1:2,h2:x"), {}, "-H: ");
  RunOptions both = On("h1:2");
  both.hostfile = "hosts";
  ExpectRefused(both, {}, "expected one of them");
  RunOptions local = On("h1:2");
  local.launcher = "local";
  ExpectRefused(local, {}, "expected no -H");
  RunOptions ranked = On("h1:2");
  ranked.first_rank = 1;
  ExpectRefused(ranked, {}, "--first-rank");
}

LaunchPlace Pod(const Environment& environment) {
  const auto place = DetectLaunchPlace(environment, {}, "");
  EXPECT_THAT(place, IsOk());
  return place.value_or(LaunchPlace());
}

TEST(PlanRun, DoesNotStartAJobInEachOfSeveralPods) {
  const Environment pods[] = {
      {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}},
      {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}, {"JOB_COMPLETION_INDEX", "1"}},
      {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
       {"JOB_COMPLETION_INDEX", "1"},
       {"JOBSET_NAME", "train"}},
      {{"LWS_LEADER_ADDRESS", "train-0"}, {"LWS_WORKER_INDEX", "1"}, {"LWS_GROUP_SIZE", "2"}},
      {{"VC_TASK_INDEX", "1"}, {"VC_WORKER_NUM", "2"}},
      {{"AWS_BATCH_JOB_NODE_INDEX", "1"}, {"AWS_BATCH_JOB_NUM_NODES", "2"}}};
  for (const Environment& environment : pods) {
    const LaunchPlace place = Pod(environment);
    SCOPED_TRACE(place.launcher);
    PlanInputs inputs;
    inputs.environment = environment;
    inputs.pod = PodOf(place);
    RunOptions options = Options();
    options.np = 2;
    EXPECT_THAT(PlanRun(options, inputs),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("this is pod 1"), HasSubstr(place.title),
                               HasSubstr("--coordinator HOST:29650"), HasSubstr("--first-rank 2 "),
                               HasSubstr("--launcher local"))));
    inputs.environment["COORDD_ADDR"] = "coordd:29650";
    EXPECT_THAT(PlanRun(options, inputs), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                   HasSubstr("--coordinator coordd:29650")));
    // What says that it is meant so, or how it becomes one job.
    options.launcher = "local";
    EXPECT_THAT(PlanRun(options, inputs), IsOk());
    options.launcher.clear();
    options.coordinator = "coordd:29650";
    options.size = 4;
    options.first_rank = 2;
    EXPECT_THAT(PlanRun(options, inputs), IsOk());
  }
}

TEST(PlanRun, IsThatOfOneMachineInAPodThatIsAlone) {
  for (const Environment& environment :
       {Environment{{"PET_NNODES", "1"}, {"PET_NODE_RANK", "0"}},
        Environment{
            {"LWS_LEADER_ADDRESS", "a"}, {"LWS_WORKER_INDEX", "0"}, {"LWS_GROUP_SIZE", "1"}},
        Environment{{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}, Environment{}}) {
    EXPECT_FALSE(PodOf(Pod(environment)).has_value());
  }
}

TEST(OverlookedText, SaysThatARunIsNotPartOfTheJobOfItsVariables) {
  RunOptions options = Options();
  EXPECT_EQ(OverlookedText(options, {}), "");
  EXPECT_EQ(OverlookedText(options, {{"COORDD_ADDR", "auto"}}), "");
  EXPECT_EQ(OverlookedText(options, {{"COORDD_ADDR", "coordd:29650"}, {"COORDD_SIZE", "8"}}),
            "COORDD_ADDR=coordd:29650 and COORDD_SIZE=8 are not looked at: this run is a job of "
            "its own, with a coordd of its own; expected --coordinator coordd:29650 --size 8 "
            "--first-rank RANK for workers of that job");
  options.coordinator = "coordd:29650";
  EXPECT_EQ(OverlookedText(options, {{"COORDD_ADDR", "coordd:29650"}}), "");
}

}  // namespace
}  // namespace coordd
