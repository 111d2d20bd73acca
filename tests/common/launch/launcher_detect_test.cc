#include "common/launch/launcher_detect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/launch/auto_coordinator.h"
#include "common/launch/host_list.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string FolderOfEnvironments() { return COORDD_TEST_ENVIRONMENTS; }

// NAME.env: VARIABLE=VALUE a line.
Environment Recorded(const std::string& name) {
  Environment environment;
  std::istringstream lines(FileText(FolderOfEnvironments() + "/" + name + ".env"));
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (line.empty() || line[0] == '#' || equals == std::string::npos) continue;
    environment[line.substr(0, equals)] = line.substr(equals + 1);
  }
  EXPECT_FALSE(environment.empty()) << name;
  return environment;
}

// Files that variables name lie beside the recorded environments.
LaunchFacts On(const std::string& hostname) {
  return {hostname,
          [](const std::string& path) -> absl::StatusOr<std::string> {
            const std::string file = std::filesystem::path(path).filename();
            return FileText(FolderOfEnvironments() + "/" + file);
          },
          [](const std::string& name) { return name + " 4711"; }};
}

LaunchPlace Detect(const std::string& name, const std::string& hostname = "") {
  const auto place = DetectLaunchPlace(Recorded(name), On(hostname), "");
  EXPECT_THAT(place, IsOk()) << name;
  return place.value_or(LaunchPlace());
}

struct Expected {
  const char* recorded;
  const char* launcher;
  int32_t rank, size, local_rank, local_size, node_rank, nodes;
  const char* job_id;
  const char* hosts;
  const char* hostname = "a01n02";
};

constexpr Expected kExpected[] = {
    {"coordrun", "coordd", 1, 4, 1, 4, -1, -1, "4711", "n1"},
    {"horovod", "horovod", 5, 8, 1, 4, 1, 2, "", ""},
    {"torchrun", "torchrun", 6, 8, 2, 4, 1, 2, "train", ""},
    {"torchrun_in_slurm", "torchrun", 7, 8, 3, 4, 1, 2, "4715", "n[1-2]"},
    {"torch_by_hand", "torchrun", 1, 2, -1, -1, -1, -1, "", ""},
    {"openmpi", "openmpi", 1, 3, 1, 3, -1, -1, "1602813953", ""},
    {"openmpi5", "openmpi", 2, 4, 0, 2, -1, -1, "prterun-node1-4711@1", ""},
    {"openmpi_in_slurm", "openmpi", 3, 4, 0, 1, -1, -1, "2", "n[0-1]"},
    {"jsrun", "jsm", 7, 12, 1, 6, 1, 2, "4711", "a01n[01-02]"},
    {"mvapich2", "mvapich2", 3, 4, 1, 2, -1, -1, "", ""},
    {"pals", "pals", 6, 8, 2, 4, 1, -1, "4711.server",
     "x1000c0s0b0n0.hsn.example,x1000c0s1b0n0.hsn.example"},
    {"hydra", "hydra", 1, 3, 1, 3, -1, -1, "", ""},
    {"hydra_in_slurm", "hydra", 3, 4, 0, 1, -1, -1, "2", "n[0-1]"},
    {"mpt", "hydra", 5, -1, 1, -1, -1, -1, "", ""},
    {"flux", "flux", 3, 4, 1, -1, -1, 2, "29341253632", ""},
    {"slurm_step", "slurm", 2, 4, 2, 3, 0, 2, "1", "n[0-1]"},
    {"slurm_step_second_node", "slurm", 3, 4, 0, 1, 1, 2, "1", "n[0-1]"},
    {"slurm_smaller_step", "slurm", 3, 4, 3, 4, 0, 1, "4713", "nid001140"},
    {"slurm_pmi2", "slurm", 1, 2, 0, 1, 1, 2, "2", "n[0-1]"},
    {"slurm_batch_script", "slurm", -1, -1, -1, -1, -1, 2, "2", "n[0-1]"},
    {"slurm_salloc_shell", "slurm", -1, -1, -1, -1, -1, 2, "3", "n[0-1]"},
    {"slurm_interactive_step", "slurm", -1, -1, -1, -1, -1, 2, "4711", "nid001140"},
    {"slurm_one_task_script", "slurm", -1, -1, -1, -1, -1, 1, "4712", "nid001140"},
    {"pmix", "pmix", 2, -1, -1, -1, -1, -1, "", ""},
    {"indexed_job", "indexed-job", 2, -1, -1, -1, 2, -1, "", ""},
    {"jobset", "jobset", 9, -1, -1, -1, 9, -1, "train", ""},
    {"lws", "lws", 1, 4, -1, -1, 1, 4, "", ""},
    {"kubeflow", "kubeflow", 1, 3, -1, -1, 1, 3, "", ""},
    {"kubeflow_old", "kubeflow", 2, 3, -1, -1, 2, 3, "", ""},
    {"volcano", "volcano", 1, 3, -1, -1, 1, 3, "", ""},
    {"aws_batch_main", "aws-batch", 0, 3, -1, -1, 0, 3, "b1c2", ""},
    {"aws_batch_child", "aws-batch", 2, 3, -1, -1, 2, 3, "b1c2", ""},
    {"sagemaker", "sagemaker", 1, 2, -1, -1, 1, 2, "", "algo-[1-2]"},
    {"condor", "condor", 2, 4, -1, -1, -1, -1, "", ""},
    {"lsf_blaunch", "lsf", 2, 4, -1, -1, -1, -1, "4711", "grid[01-02]"},
    {"lsf_batch_script", "lsf", -1, -1, -1, -1, -1, 2, "4711", "a01n[01-02]", "batch5"},
    {"pbs", "pbs", -1, -1, -1, -1, -1, 2, "4711.server",
     "x1000c0s0b0n0.hsn.example,x1000c0s1b0n0.hsn.example"},
    {"sge", "sge", -1, -1, -1, -1, -1, 2, "4711", "c1.example,c2.example"},
    {"azure_batch", "azure-batch", -1, -1, -1, -1, -1, -1, "train", ""},
};

TEST(LauncherDetect, FindsThePlaceInEachRecordedEnvironment) {
  for (const Expected& expected : kExpected) {
    SCOPED_TRACE(expected.recorded);
    const LaunchPlace place = Detect(expected.recorded, expected.hostname);
    EXPECT_EQ(place.launcher, expected.launcher);
    EXPECT_EQ(place.rank, expected.rank);
    EXPECT_EQ(place.size, expected.size);
    EXPECT_EQ(place.local_rank, expected.local_rank);
    EXPECT_EQ(place.local_size, expected.local_size);
    EXPECT_EQ(place.node_rank, expected.node_rank);
    EXPECT_EQ(place.nodes, expected.nodes);
    EXPECT_EQ(place.job_id, expected.job_id);
    EXPECT_EQ(CompressHostList(place.hosts), expected.hosts);
    EXPECT_THAT(place.warnings, IsEmpty());
    EXPECT_FALSE(place.why.empty());
  }
}

TEST(LauncherDetect, HasARecordedEnvironmentForEachLauncher) {
  std::set<std::string> seen;
  for (const Expected& expected : kExpected) seen.insert(expected.launcher);
  seen.insert("none");
  for (const std::string& name : LauncherNames()) EXPECT_EQ(seen.count(name), 1u) << name;
}

TEST(LauncherDetect, FindsNobodyInAnEmptyEnvironment) {
  const auto place = DetectLaunchPlace({}, {}, "");
  ASSERT_THAT(place, IsOk());
  EXPECT_EQ(place->launcher, "none");
  EXPECT_FALSE(place->is_rank());
  EXPECT_THAT(place->not_a_rank, IsEmpty());
}

TEST(LauncherDetect, TakesABatchScriptForNoRank) {
  EXPECT_THAT(
      Detect("slurm_batch_script").not_a_rank,
      AllOf(HasSubstr("the batch script of Slurm job 2"), HasSubstr("4 tasks"), HasSubstr("srun")));
  EXPECT_THAT(Detect("slurm_salloc_shell").not_a_rank,
              AllOf(HasSubstr("a shell in Slurm job 3"), HasSubstr("8 tasks")));
  EXPECT_THAT(Detect("slurm_interactive_step").not_a_rank,
              AllOf(HasSubstr("salloc's shell in Slurm job 4711"), HasSubstr("8 tasks")));
  EXPECT_THAT(Detect("lsf_batch_script").not_a_rank, HasSubstr("LSF job 4711"));
  EXPECT_THAT(Detect("pbs").not_a_rank, HasSubstr("2 hosts"));
  EXPECT_THAT(Detect("sge").not_a_rank, HasSubstr("Grid Engine"));
}

TEST(LauncherDetect, LetsAJobOfASingleTaskRunInItsScript) {
  EXPECT_THAT(Detect("slurm_one_task_script").not_a_rank, IsEmpty());
}

TEST(LauncherDetect, TakesEverySpecialStepForNoRank) {
  Environment environment = Recorded("slurm_interactive_step");
  for (const char* step : {"4294967290", "4294967291", "4294967292", "batch"}) {
    environment["SLURM_STEP_ID"] = step;
    EXPECT_FALSE(DetectLaunchPlace(environment, {}, "")->is_rank()) << step;
  }
}

TEST(LauncherDetect, KnowsTheDaemonUnderMpirunAndTorchrun) {
  for (const char* name : {"openmpi_in_slurm", "hydra_in_slurm", "torchrun_in_slurm"}) {
    EXPECT_THAT(Detect(name).notes,
                Contains(AllOf(HasSubstr("Slurm says rank 1 of 2"), HasSubstr("daemon"))))
        << name;
  }
}

TEST(LauncherDetect, WarnsWithBothWhenLaunchersDisagree) {
  const LaunchPlace place = Detect("two_launchers");
  EXPECT_EQ(place.launcher, "horovod");
  EXPECT_THAT(place.warnings, ElementsAre(AllOf(HasSubstr("Horovod says rank 0 of 4"),
                                                HasSubstr("torchrun says rank 1 of 2"))));
}

TEST(LauncherDetect, WarnsOfVariablesLeftByAnOuterMpirun) {
  const LaunchPlace place = Detect("slurm_leaked_mpi");
  EXPECT_THAT(place.warnings,
              ElementsAre(AllOf(HasSubstr("rank 0 of 1"), HasSubstr("Slurm says rank 2 of 4"))));
  EXPECT_EQ(DetectLaunchPlace(Recorded("slurm_leaked_mpi"), {}, "slurm")->rank, 2);
}

TEST(LauncherDetect, PassesOverASetThatContradictsItself) {
  const LaunchPlace place = Detect("incoherent");
  EXPECT_EQ(place.launcher, "slurm");
  EXPECT_THAT(place.warnings, ElementsAre(HasSubstr("rank 4 does not fit its size 4")));
}

TEST(LauncherDetect, PassesOverNumbersThatAreNone) {
  for (const char* text : {"-1", "two", "1.5", "99999999999", "0x1"}) {
    const auto place = DetectLaunchPlace({{"PMI_RANK", text}, {"PMI_SIZE", "4"}}, {}, "");
    ASSERT_THAT(place, IsOk());
    EXPECT_EQ(place->launcher, "none") << text;
    EXPECT_THAT(place->notes, ElementsAre(HasSubstr("PMI_RANK"))) << text;
  }
}

TEST(LauncherDetect, ObeysTheLauncherThatIsAskedFor) {
  const Environment environment = Recorded("openmpi_in_slurm");
  EXPECT_EQ(DetectLaunchPlace(environment, {}, "slurm")->rank, 1);
  EXPECT_EQ(DetectLaunchPlace(environment, {}, "openmpi")->rank, 3);
  EXPECT_EQ(DetectLaunchPlace(environment, {}, "auto")->rank, 3);
  EXPECT_FALSE(DetectLaunchPlace(environment, {}, "none")->is_rank());
}

TEST(LauncherDetect, SaysWhyALauncherCannotBeHad) {
  const Environment environment = Recorded("openmpi");
  EXPECT_THAT(DetectLaunchPlace(environment, {}, "slurm"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("SLURM_JOB_ID")));
  EXPECT_THAT(DetectLaunchPlace(environment, {}, "slumr"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("slumr"), HasSubstr("slurm"), HasSubstr("none"))));
  EXPECT_THAT(DetectLaunchPlace(Recorded("incoherent"), {}, "horovod"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not fit")));
}

TEST(LauncherDetect, ReadsAddressesOfTheLaunchNode) {
  EXPECT_THAT(Detect("openmpi").coordinator_hints,
              AllOf(Contains(CoordinatorHint{"192.0.2.2", 0, "OMPI_MCA_orte_hnp_uri"}),
                    Contains(CoordinatorHint{"fd00::2", 0, "OMPI_MCA_orte_hnp_uri"})));
  EXPECT_THAT(Detect("azure_batch").coordinator_hints,
              ElementsAre(CoordinatorHint{"192.0.2.4", 6000, "AZ_BATCH_MASTER_NODE"}));
  EXPECT_THAT(Detect("aws_batch_child").coordinator_hints,
              ElementsAre(Field(&CoordinatorHint::host, "192.0.2.40")));
  EXPECT_THAT(Detect("aws_batch_main", "ip-192-0-2-40").coordinator_hints,
              ElementsAre(Field(&CoordinatorHint::host, "ip-192-0-2-40")));
  EXPECT_THAT(Detect("jobset").coordinator_hints,
              ElementsAre(Field(&CoordinatorHint::host, "train-workers-0-0.train")));
  EXPECT_THAT(Detect("jobset").notes, Not(Contains(HasSubstr("daemon"))));
}

TEST(LauncherDetect, DropsTheLaunchNodeUnlessThisTaskRunsThere) {
  EXPECT_THAT(Detect("jsrun", "a01n01").hosts, ElementsAre("a01n01", "a01n02"));
  EXPECT_THAT(Detect("jsrun", "batch5").hosts, ElementsAre("batch5", "a01n01", "a01n02"));
  // A job of single slots has no launch node to be told from the others.
  const auto place = DetectLaunchPlace(
      {{"LSB_JOBID", "1"}, {"LSB_MCPU_HOSTS", "grid03 1 grid05 1 grid01 2"}}, {}, "");
  EXPECT_THAT(place->hosts, ElementsAre("grid03", "grid05", "grid01"));
  // Where the script itself runs on a host of several slots, the one with a single slot is like it.
  EXPECT_THAT(Detect("lsf_batch_script", "a01n01").hosts,
              ElementsAre("a01n01", "a01n02", "batch5"));
}

TEST(LauncherDetect, TellsTheSlotsOfEachHostWhereTheSchedulerDoes) {
  EXPECT_THAT(Detect("lsf_batch_script", "batch5").host_slots, ElementsAre(42, 42));
  EXPECT_THAT(Detect("pbs").host_slots, ElementsAre(4, 4));
  EXPECT_THAT(Detect("sge").host_slots, ElementsAre(4, 4));
  EXPECT_THAT(Detect("slurm_batch_script").host_slots, ElementsAre(0, 0));
}

TEST(LauncherDetect, FindsItsNodeUnderTheNameOfAnInterface) {
  Environment environment = Recorded("jsrun");
  environment.erase("LSB_DJOB_RANKFILE");
  environment["LSB_MCPU_HOSTS"] = "batch5-ib0 1 a01n01-ib0 42 a01n02-ib0 42";
  EXPECT_EQ(DetectLaunchPlace(environment, On("a01n02.cluster"), "")->node_rank, 1);
}

TEST(LauncherDetect, GivesAllTasksOfOneStartTheSameInstance) {
  const std::string step = Detect("slurm_step").instance;
  EXPECT_FALSE(step.empty());
  EXPECT_EQ(Detect("slurm_step_second_node").instance, step);
  Environment again = Recorded("slurm_step");
  again["SLURM_STEP_LAUNCHER_PORT"] = "1";
  EXPECT_NE(DetectLaunchPlace(again, {}, "")->instance, step);
  EXPECT_FALSE(Detect("openmpi").instance.empty());
  EXPECT_FALSE(Detect("hydra_in_slurm").instance.empty());
  // Nothing in its variables: the process that has started them all, when they are on one node.
  EXPECT_EQ(Detect("hydra").instance, "hydra hydra_pmi_proxy 4711");
  EXPECT_THAT(Detect("mvapich2").instance, IsEmpty());
}

// The variables by which schedulers number their jobs.
constexpr const char* kJobVariables[] = {"SLURM_JOB_ID", "SLURM_JOBID", "LSB_JOBID",   "PBS_JOBID",
                                         "FLUX_JOB_ID",  "JOB_ID",      "LSB_JOBINDEX"};

TEST(LauncherDetect, NeverTakesTwoJobsOfASchedulerForOne) {
  for (const Expected& expected : kExpected) {
    for (const char* variable : kJobVariables) {
      SCOPED_TRACE(absl::StrCat(expected.recorded, " ", variable));
      Environment one = Recorded(expected.recorded);
      // A script of another scheduler may have started this launcher: LSF's, say.
      const bool is_sge = std::string(variable) == "JOB_ID";
      if (is_sge && one.count("PE_HOSTFILE") == 0) one["PE_HOSTFILE"] = "/spool/4711.pe_hostfile";
      if (std::string(variable) == "LSB_JOBINDEX") one["LSB_JOBID"] = "4711";
      if (std::string(variable) == "SLURM_JOBID") one.erase("SLURM_JOB_ID");  // older Slurms
      Environment other = one;
      one[variable] = "5001";
      other[variable] = "5002";
      const auto place = DetectLaunchPlace(one, On("a01n02"), "");
      const auto elsewhere = DetectLaunchPlace(other, On("a01n02"), "");
      ASSERT_THAT(place, IsOk());
      ASSERT_THAT(elsewhere, IsOk());
      if (place->instance.empty()) continue;
      EXPECT_NE(place->instance, elsewhere->instance);
      EXPECT_NE(DirectoryOfInstance(*place), DirectoryOfInstance(*elsewhere));
    }
  }
}

// What tells two starts of each launcher apart, where no scheduler does.
struct Numbering {
  const char* recorded;
  const char* variable;
};
constexpr Numbering kNumberings[] = {
    {"horovod", "HOROVOD_GLOO_RENDEZVOUS_ADDR"},
    {"horovod", "HOROVOD_GLOO_RENDEZVOUS_PORT"},
    {"torchrun", "TORCHELASTIC_RUN_ID"},
    {"torchrun", "MASTER_PORT"},
    {"torch_by_hand", "MASTER_PORT"},
    {"jsrun", "LSB_JOBID"},
    {"jsrun", "JSM_NAMESPACE"},
    {"jsrun", "PMIX_NAMESPACE"},
    {"openmpi", "OMPI_MCA_orte_hnp_uri"},
    {"openmpi5", "PMIX_NAMESPACE"},
    {"openmpi_in_slurm", "OMPI_MCA_orte_hnp_uri"},
    {"pals", "PALS_APID"},
    {"hydra_in_slurm", "SLURM_STEP_ID"},
    {"flux", "FLUX_JOB_ID"},
    {"slurm_step", "SLURM_JOB_ID"},
    {"slurm_step", "SLURM_STEP_ID"},
    {"slurm_step", "SLURM_RESTART_COUNT"},
    {"slurm_smaller_step", "SLURM_STEP_ID"},
    {"slurm_pmi2", "SLURM_STEP_ID"},
    {"pmix", "PMIX_NAMESPACE"},
};

TEST(LauncherDetect, NeverTakesTwoStartsOfALauncherForOne) {
  for (const Numbering& numbering : kNumberings) {
    SCOPED_TRACE(absl::StrCat(numbering.recorded, " ", numbering.variable));
    const auto directory = [&numbering](const char* number) {
      Environment environment = Recorded(numbering.recorded);
      environment[numbering.variable] = number;
      const auto place = DetectLaunchPlace(environment, On("a01n02"), "").value_or(LaunchPlace());
      EXPECT_THAT(place.instance, Not(IsEmpty()));
      return DirectoryOfInstance(place);
    };
    EXPECT_NE(directory("5001"), directory("5002"));
  }
}

TEST(LauncherDetect, NamesNoRendezvousWhereNothingTellsTwoStartsApart) {
  std::set<std::string> numbered;
  for (const Numbering& one : kNumberings) numbered.insert(Detect(one.recorded).launcher);
  // All the processes of a start on one node have an ancestor in common, which is told apart.
  for (const char* name : {"hydra", "mvapich2"}) numbered.insert(name);
  std::set<std::string> directories;
  for (const Expected& expected : kExpected) {
    SCOPED_TRACE(expected.recorded);
    const LaunchPlace place = Detect(expected.recorded, expected.hostname);
    EXPECT_TRUE(numbered.count(place.launcher) > 0 || place.instance.empty()) << place.instance;
    // Nor are the starts of two launchers one, whatever their numbers.
    const std::string second_node = "slurm_step_second_node";
    if (place.instance.empty() || expected.recorded == second_node) continue;
    EXPECT_TRUE(directories.insert(DirectoryOfInstance(place)).second);
  }
}

// The variables of coordrun's worker `rank` of `workers`, in which torchrun runs on `agents` nodes.
Environment TorchrunInside(const char* rank, const char* workers, const char* agents) {
  return {{"COORDD_RANK", rank},
          {"COORDD_SIZE", workers},
          {"COORDD_LOCAL_RANK", rank},
          {"COORDD_LOCAL_SIZE", workers},
          {"COORDD_LAUNCH_ID", "x.0"},
          {"TORCHELASTIC_RUN_ID", "train"},
          {"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"GROUP_RANK", "0"},
          {"GROUP_WORLD_SIZE", agents},
          {"MASTER_ADDR", "node1"},
          {"MASTER_PORT", "29500"}};
}

TEST(LauncherDetect, TakesTorchrunInsideOfCoordrunsWorkersForOneJob) {
  for (const char* nodes : {"1", "2"}) {
    const auto place = DetectLaunchPlace(TorchrunInside("0", nodes, nodes), On("n1"), "");
    ASSERT_THAT(place, IsOk());
    EXPECT_EQ(place->launcher, "torchrun");
    EXPECT_EQ(place->rank, 3);
    EXPECT_EQ(place->size, 4);
    EXPECT_TRUE(place->inside_coordrun);
    EXPECT_THAT(place->warnings, IsEmpty());
  }
}

TEST(LauncherDetect, RefusesSeveralTorchrunsInsideOfOneCoordrun) {
  Environment environment = TorchrunInside("0", "2", "1");
  EXPECT_THAT(
      DetectLaunchPlace(environment, On("n1"), ""),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("each of coordrun's 2 workers"), HasSubstr("torchrun --nnodes 2"))));
  // Variables of ours that somebody has set by hand under torchrun are no coordrun's.
  environment.erase("COORDD_LAUNCH_ID");
  EXPECT_EQ(DetectLaunchPlace(environment, On("n1"), "")->launcher, "coordd");
}

TEST(LauncherDetect, ExpectsCoordrunToNumberMpirunsRanksByNode) {
  Environment environment = Recorded("openmpi");
  for (const auto& [name, value] : Environment{{"COORDD_RANK", "2"},
                                               {"COORDD_SIZE", "3"},
                                               {"RANK", "2"},
                                               {"WORLD_SIZE", "3"},
                                               {"MASTER_ADDR", "192.0.2.2"},
                                               {"COORDD_TORCH_ENV", "RANK,WORLD_SIZE"}}) {
    environment[name] = value;
  }
  const auto place = DetectLaunchPlace(environment, On("n1"), "");
  ASSERT_THAT(place, IsOk());
  EXPECT_EQ(place->rank, 2);  // mpirun's is 1
  EXPECT_THAT(place->warnings, IsEmpty());
}

TEST(LauncherDetect, TakesJsrunForWhatItIsBesideOpenMpisVariables) {
  Environment environment = Recorded("jsrun");
  environment["OMPI_COMM_WORLD_RANK"] = "7";
  environment["OMPI_COMM_WORLD_SIZE"] = "12";
  const auto place = DetectLaunchPlace(environment, On("a01n02"), "");
  ASSERT_THAT(place, IsOk());
  EXPECT_EQ(place->launcher, "jsm");
  EXPECT_EQ(place->job_id, "4711");
  EXPECT_THAT(place->warnings, IsEmpty());
  environment["LSB_JOBID"] = "4712";
  EXPECT_NE(DirectoryOfInstance(*DetectLaunchPlace(environment, On("a01n02"), "")),
            DirectoryOfInstance(*place));
}

TEST(LauncherDetect, TakesCoordrunForWhatItIsBesideTorchsVariables) {
  Environment environment = Recorded("coordrun");
  for (const auto& [name, value] : Environment{{"RANK", "1"},
                                               {"WORLD_SIZE", "4"},
                                               {"LOCAL_RANK", "1"},
                                               {"LOCAL_WORLD_SIZE", "4"},
                                               {"GROUP_RANK", "0"},
                                               {"MASTER_ADDR", "127.0.0.1"},
                                               {"MASTER_PORT", "29500"}}) {
    environment[name] = value;
  }
  for (const char* pod : {"", "10.0.0.1"}) {  // where Kubeflow's rule looks at the same variables
    environment["KUBERNETES_SERVICE_HOST"] = pod;
    const auto place = DetectLaunchPlace(environment, On("n1"), "");
    ASSERT_THAT(place, IsOk());
    EXPECT_EQ(place->launcher, "coordd");
    EXPECT_FALSE(place->node_level);
    EXPECT_THAT(place->warnings, IsEmpty());
    EXPECT_THAT(place->instance, IsEmpty());
  }
}

TEST(LauncherDetect, WarnsOfAHeterogeneousJob) {
  Environment environment = Recorded("slurm_step");
  environment["SLURM_HET_SIZE"] = "2";
  EXPECT_THAT(DetectLaunchPlace(environment, {}, "")->warnings,
              ElementsAre(HasSubstr("heterogeneous")));
}

TEST(LauncherDetect, CountsTheGpusThatItIsShown) {
  Environment environment = Recorded("slurm_step");
  const auto device = [&environment](const char* visible) {
    environment["CUDA_VISIBLE_DEVICES"] = visible;
    return DeviceOf(*DetectLaunchPlace(environment, {}, ""));
  };
  EXPECT_EQ(DeviceOf(Detect("slurm_step")), 2);  // not said: local rank 2
  EXPECT_EQ(device("0,1,2,3"), 2);
  EXPECT_EQ(device("2"), 0);  // one GPU: it is device 0 whatever the local rank
  EXPECT_EQ(device("GPU-1234"), 0);
  EXPECT_EQ(device("0,1"), -1);
  EXPECT_EQ(device(""), -1);
  EXPECT_EQ(device("-1,0"), -1);
}

TEST(LauncherDetect, SurvivesValuesThatMakeNoSense) {
  for (const Expected& expected : kExpected) {
    for (const auto& [name, value] : Recorded(expected.recorded)) {
      for (const char* text :
           {"", "x", "-1", "[", "99999999999999999999", "a[1-", "\xff", "(x0)"}) {
        Environment environment = Recorded(expected.recorded);
        environment[name] = text;
        EXPECT_THAT(DetectLaunchPlace(environment, On("n0"), ""), IsOk()) << name << "=" << text;
      }
    }
  }
}

}  // namespace
}  // namespace coordd
