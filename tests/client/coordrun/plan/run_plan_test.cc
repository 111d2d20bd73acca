#include "client/coordrun/plan/run_plan.h"

#include "client/coordrun/plan/commands.h"
#include "client/coordrun/plan/nested_launch.h"
#include "client/coordrun/plan/slot_book.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
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
  EXPECT_THAT(SlotSentences(gone, book.slots(), Found("c:1\nb:2\na:1"), {17, 18, 19, 20}),
              ElementsAre("host c is there: slot 3", "host a has fewer slots: slot 1 (pid 18)"));
  EXPECT_THAT(SlotSentences(gone, book.slots(), Found("c:1\nb:2"), {}),
              ElementsAre("host c is there: slot 3", "host a is gone: slot 1"));
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

TEST(SlotBook, OfAHostWithFewerSlotsTheEmptyOnesGoFirst) {
  SlotBook book(3);
  EXPECT_THAT(book.Update(Found("a:3")).start, ElementsAre(0, 1, 2));
  book.Drained(1);
  EXPECT_EQ(book.DrainedOf(Found("a:3")), 1);
  EXPECT_EQ(book.DrainedOf(Found("a:2")), 0);
  const SlotChange fewer = book.Update(Found("a:2"));
  EXPECT_THAT(fewer.end, IsEmpty());
  EXPECT_THAT(fewer.start, IsEmpty());
  EXPECT_EQ(book.wanted(), 2);
  // The host has the numbers 0 and 1.
  EXPECT_EQ(book.LocalRankOf(0), 0);
  EXPECT_EQ(book.LocalRankOf(2), 1);
  // Who is waited for in vain goes before who is there.
  EXPECT_THAT(book.Update(Found("a:1"), {0}).end, ElementsAre(0));
  EXPECT_EQ(book.LocalRankOf(2), 0);
  // What comes back has no slot twice.
  EXPECT_THAT(book.Update(Found("a:3")).start, ElementsAre(0, 1));
  EXPECT_THAT(book.Update(Found("a:2")).end, ElementsAre(2));
}

TEST(SlotBook, ADrainedSlotIsNoneThatIsFilled) {
  SlotBook book(0);
  book.Update(Found("a:2\nb:2"));
  book.Drained(0);
  book.Drained(1);
  EXPECT_EQ(book.DrainedOf(Found("a:2\nb:2")), 2);
  EXPECT_EQ(book.DrainedOf(Found("a:1\nb:2")), 1);
  EXPECT_EQ(book.DrainedOf(Found("b:2\nc:2")), 0);
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

// As one of the processes that a launcher has started.
absl::StatusOr<RunPlan> PlanInTask(const RunOptions& options, const Environment& environment) {
  const auto place = DetectLaunchPlace(environment, {}, "");
  EXPECT_THAT(place, IsOk());
  PlanInputs inputs;
  inputs.environment = environment;
  inputs.hostname = "launch.cluster";
  inputs.task = TaskOf(*place);
  return PlanRun(options, inputs);
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
  EXPECT_THAT(PlanInTask(Options(), task),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("one of 4 tasks of a Slurm step"),
                             HasSubstr("expected 'srun -n 4 train ...' without coordrun"))));
  EXPECT_EQ(PlanInTask(Np(With("local"), 2), task)->launcher, LauncherKind::kLocal);
}

// What each launcher's processes have, of which coordrun is one.
const Environment kTasks[] = {
    {{"TORCHELASTIC_RUN_ID", "x"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}},
    {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
    {{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "2"}},
    {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
    {{"PALS_RANKID", "1"}, {"PALS_SIZE", "2"}},
    {{"JSM_NAMESPACE_RANK", "1"}, {"JSM_NAMESPACE_SIZE", "2"}, {"LSB_JOBID", "7"}},
    {{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "2"}},
    {{"HOROVOD_RANK", "1"}, {"HOROVOD_SIZE", "2"}},
    {{"LSB_JOBID", "7"}, {"LSF_PM_TASKID", "2"}, {"LSB_DJOB_NUMPROC", "2"}},
    {{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}},  // the size is not said
    {{"SLURM_JOB_ID", "7"},
     {"SLURM_STEP_ID", "0"},
     {"SLURM_PROCID", "1"},
     {"SLURM_STEP_NUM_TASKS", "2"}},
    {{"COORDD_RANK", "1"}, {"COORDD_SIZE", "2"}}};

TEST(PlanRun, DoesNotStartAJobInEachOfSeveralTasks) {
  for (const Environment& environment : kTasks) {
    SCOPED_TRACE(environment.begin()->first);
    for (const RunOptions& options : {Options(), Np(Options(), 2), On("h1:2"), With("ssh")}) {
      EXPECT_THAT(PlanInTask(options, environment),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           AllOf(HasSubstr("would start a run of its own"), HasSubstr("train"),
                                 HasSubstr("--launcher local"))));
    }
    EXPECT_THAT(PlanInTask(With("local"), environment), IsOk());
    RunOptions part = Np(Options(), 2);
    part.coordinator = "coordd:29650";
    part.size = 4;
    part.first_rank = 2;
    EXPECT_THAT(PlanInTask(part, environment), IsOk());
  }
}

TEST(PlanRun, GoesOnInATaskThatIsTheOnlyOne) {
  for (const Environment& environment :
       {Environment{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
        Environment{{"SLURM_JOB_ID", "7"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_PROCID", "0"},
                    {"SLURM_STEP_NUM_TASKS", "1"}},
        Environment{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "here"}}}) {
    EXPECT_THAT(PlanInTask(Np(Options(), 2), environment), IsOk());
  }
}

TEST(PlanRun, DoesNotStartALauncherInEachOfSeveralWorkers) {
  const std::vector<std::vector<std::string>> commands = {
      {"torchrun", "--nproc_per_node", "2", "train.py"},
      {"/usr/bin/torchrun", "--nnodes=1", "train.py"},
      {"python3", "-m", "torch.distributed.run", "--nnodes", "1", "train.py"},
      {"mpirun", "-np", "2", "train"},
      {"srun", "train"}};
  for (const auto& command : commands) {
    SCOPED_TRACE(command[0]);
    RunOptions options = Np(Options(), 2);
    options.command = command;
    EXPECT_THAT(Plan(options), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        AllOf(HasSubstr("each of 2 workers"),
                                              HasSubstr("'coordrun -np N PROGRAM ...'"))));
    options.launcher = "local";
    EXPECT_THAT(Plan(options), IsOk());
    options.launcher.clear();
    EXPECT_THAT(Plan(Np(options, 1)), IsOk());
  }
  RunOptions one_job = Np(Options(), 2);
  one_job.command = {"torchrun", "--nnodes", "2", "--rdzv-backend", "c10d", "train.py"};
  EXPECT_THAT(Plan(one_job), IsOk());
  one_job.command = {"python3", "torchrun.py", "srun"};
  EXPECT_THAT(Plan(one_job), IsOk());
}

TEST(PlanRun, DoesNotTakeAJobWhoseHostsCannotBeReadForThisMachine) {
  const LaunchFacts facts = {
      .hostname = "launch",
      .read_file = [](const std::string& path) -> absl::StatusOr<std::string> {
        if (path == "/empty") return std::string();
        if (path == "/malformed") return std::string("h1 slots=x\n");
        return absl::NotFoundError(path + " cannot be read: No such file or directory");
      },
      .ancestor = {}};
  const Environment jobs[] = {{{"LSB_JOBID", "7"}, {"LSB_DJOB_HOSTFILE", "/gone"}},
                              {{"LSB_JOBID", "7"}, {"LSB_MCPU_HOSTS", "h1 x"}},
                              {{"LSB_JOBID", "7"}, {"LSB_DJOB_HOSTFILE", "/empty"}},
                              {{"PBS_JOBID", "7"}, {"PBS_NODEFILE", "/gone"}},
                              {{"JOB_ID", "7"}, {"PE_HOSTFILE", "/malformed"}}};
  for (const Environment& environment : jobs) {
    SCOPED_TRACE(environment.rbegin()->first);
    const auto place = DetectLaunchPlace(environment, facts, "");
    ASSERT_THAT(place, IsOk());
    PlanInputs inputs;
    inputs.environment = environment;
    inputs.allocation = AllocationOf(*place);
    inputs.unusable_hosts = UnusableHostsOf(*place);
    const std::string variable = place->launcher == "lsf"   ? "LSB_"
                                 : place->launcher == "pbs" ? "PBS_NODEFILE"
                                                            : "PE_HOSTFILE";
    EXPECT_THAT(PlanRun(Options(), inputs),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("the job script of"), HasSubstr(variable),
                               HasSubstr("-H HOST:SLOTS"), HasSubstr("--launcher local"))));
    EXPECT_THAT(PlanRun(With("local"), inputs), IsOk());
    EXPECT_THAT(PlanRun(On("h1:2"), inputs), IsOk());
  }
  // Another list says them.
  const auto place = DetectLaunchPlace(
      {{"LSB_JOBID", "7"}, {"LSB_DJOB_HOSTFILE", "/gone"}, {"LSB_MCPU_HOSTS", "h1 2 h2 2"}}, facts,
      "");
  EXPECT_EQ(UnusableHostsOf(*place), "");
  EXPECT_THAT(place->warnings, ElementsAre(HasSubstr("/gone")));
  // A job that names none is one of this machine.
  EXPECT_EQ(UnusableHostsOf(*DetectLaunchPlace({{"PBS_JOBID", "7"}}, facts, "")), "");
}

TEST(LeftoverText, SaysHowToGoOnWithoutAJobThatHasEnded) {
  const Environment shell = {{"SLURM_JOB_ID", "77"}};
  EXPECT_THAT(LeftoverText(Options(), shell),
              AllOf(HasSubstr("SLURM_JOB_ID=77"), HasSubstr("--launcher local")));
  EXPECT_EQ(LeftoverText(With("srun"), shell), "");
  const std::string hint = "HINT";
  const ProcessEnd end = {.code = 1, .signal = 0};
  EXPECT_THAT(
      ExplainSrun(
          end, {"srun: error: Unable to confirm allocation for job 77: Invalid job id specified"},
          hint),
      HasSubstr("; HINT"));
  EXPECT_THAT(ExplainSrun(end, {"srun: error: Task launch failed"}, hint), Not(HasSubstr("HINT")));
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

TEST(PlanRun, TheLauncherIsCalledWhatWhoeverAskedForItCallsIt) {
  RunOptions options = On("h1:2,h2:2");
  for (const char* launcher : {"blaunch", "ssh", "mpirun"}) {
    options.launcher = launcher;
    const auto plan = PlanRun(options, {});
    ASSERT_THAT(plan, IsOk());
    EXPECT_EQ(LauncherName(options, *plan), launcher);
  }
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
