#include "common/launch/launcher_special.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/launch/ddl_topology.h"
#include "common/launch/host_list.h"

namespace coordd {
namespace {

// Ids from here on are Slurm's own: of a batch script, of salloc's shell, of external processes.
constexpr uint32_t kFirstSpecialStep = 0xfffffff0u;
// Eight hundred million ranks: any number beyond it is no rank.
constexpr int32_t kMaxNumber = 1 << 30;

constexpr char kHowToRunAlone[] =
    "; to run it alone here, set COORDD_LAUNCHER=none (or --launcher none)";

void ForgetRank(LaunchPlace& place) {
  place.rank = place.size = place.local_rank = place.local_size = place.node_rank = -1;
}

// What a process inside a Slurm allocation is that is no task of a step.
std::string SlurmProcessTitle(const Environment& environment, const std::string& step) {
  if (!step.empty()) return "salloc's shell in Slurm job ";
  if (!Variable(environment, "SLURM_PROCID").empty()) return "the batch script of Slurm job ";
  return "a shell in Slurm job ";
}

void SetNotATask(const Environment& environment, const std::string& step, LaunchPlace& place) {
  ForgetRank(place);
  // Not SLURM_STEP_NUM_TASKS, which is 1 in salloc's shell, nor SLURM_TASKS_PER_NODE, which without
  // --ntasks may be the number of cores.
  const int32_t tasks = NumberOf(Variable(environment, "SLURM_NTASKS"), 1).value_or(1);
  place.nodes = NumberOf(FirstSet(environment, "SLURM_JOB_NUM_NODES SLURM_NNODES"), 1).value_or(-1);
  const std::string title = absl::StrCat(SlurmProcessTitle(environment, step), place.job_id);
  if (tasks <= 1 && place.nodes <= 1) {
    place.why = absl::StrCat("this is ", title, ", which has a single task");
    return;
  }
  const std::string size =
      tasks > 1 ? absl::StrCat(tasks, " tasks") : absl::StrCat("tasks on ", place.nodes, " nodes");
  place.not_a_rank = absl::StrCat("this process is ", title, ", not one of its ", size,
                                  ": start the program with srun or coordrun", kHowToRunAlone);
}

// "1602813952.0;tcp://192.0.2.2,10.0.0.2:35101;tcp6://[fd00::2]:33859": the addresses.
std::vector<CoordinatorHint> HintsOfUri(absl::string_view uri, absl::string_view source) {
  std::vector<CoordinatorHint> hints;
  const std::vector<absl::string_view> parts = absl::StrSplit(uri, ';');
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t scheme = parts[i].find("://");
    if (scheme == absl::string_view::npos || !absl::StartsWith(parts[i], "tcp")) continue;
    absl::string_view addresses = parts[i].substr(scheme + 3);
    // The port is the launcher's own, of no use to us.
    addresses = addresses.substr(0, addresses.rfind(':'));
    for (absl::string_view address : absl::StrSplit(addresses, ',')) {
      while (absl::StartsWith(address, "[")) address.remove_prefix(1);
      while (absl::EndsWith(address, "]")) address.remove_suffix(1);
      if (!address.empty()) hints.push_back({std::string(address), 0, std::string(source)});
    }
  }
  return hints;
}

int32_t PositionOf(const std::string& host, const std::vector<std::string>& hosts) {
  for (size_t i = 0; i < hosts.size(); ++i)
    if (SameHost(host, hosts[i])) return static_cast<int32_t>(i);
  return -1;
}

}  // namespace

std::string FirstSet(const Environment& environment, absl::string_view names) {
  for (absl::string_view name : absl::StrSplit(names, ' ', absl::SkipEmpty())) {
    std::string value = Variable(environment, std::string(name));
    if (!value.empty()) return value;
  }
  return "";
}

std::optional<int32_t> NumberOf(absl::string_view text, int32_t minimum) {
  int32_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < minimum || number > kMaxNumber)
    return std::nullopt;
  return number;
}

std::string FinishTorchrun(const Environment& environment, const LaunchFacts&, LaunchPlace&) {
  const bool agent = !Variable(environment, "TORCHELASTIC_RUN_ID").empty() ||
                     !Variable(environment, "LOCAL_RANK").empty();
  if (!agent && !Variable(environment, "KUBERNETES_SERVICE_HOST").empty())
    return "RANK and WORLD_SIZE count pods here, without torchrun";
  return "";
}

// ddlrun starts its processes with mpirun, and tells them their topology besides.
void ReadDdl(const Environment& environment, LaunchPlace& place) {
  const std::string options = Variable(environment, "DDL_OPTIONS");
  const std::string hosts = Variable(environment, "DDL_HOST_LIST");
  if (options.empty() || hosts.empty()) return;
  absl::StatusOr<std::vector<std::string>> labels = DdlLabelsOfRank(options, hosts, place.rank);
  if (labels.ok()) {
    place.topology = *std::move(labels);
  } else {
    place.warnings.push_back(
        absl::StrCat("ddlrun's variables do not say where this node is in the network (",
                     labels.status().message(), "): DDL_OPTIONS=", options,
                     " DDL_HOST_LIST=", hosts, "; COORDD_TOPOLOGY says it by hand"));
  }
}

std::string FinishOpenMpi(const Environment& environment, const LaunchFacts&, LaunchPlace& place) {
  for (const auto& [name, value] : environment) {
    if (name != "OMPI_MCA_orte_hnp_uri" && !absl::StartsWith(name, "PMIX_SERVER_URI")) continue;
    for (CoordinatorHint& hint : HintsOfUri(value, name)) {
      const bool known =
          std::any_of(place.coordinator_hints.begin(), place.coordinator_hints.end(),
                      [&hint](const CoordinatorHint& other) { return other.host == hint.host; });
      if (!known) place.coordinator_hints.push_back(std::move(hint));
    }
  }
  ReadDdl(environment, place);
  return "";
}

std::string FinishJsm(const Environment&, const LaunchFacts& facts, LaunchPlace& place) {
  if (place.hosts.empty()) return "";
  place.nodes = static_cast<int32_t>(place.hosts.size());
  if (!facts.hostname.empty()) place.node_rank = PositionOf(facts.hostname, place.hosts);
  return "";
}

std::string FinishHydra(const Environment& environment, const LaunchFacts&, LaunchPlace& place) {
  // srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE too, and nothing local. Slurm's own variables say
  // more.
  const auto step = NumberOf(FirstSet(environment, "SLURM_STEP_ID SLURM_STEPID"), 0);
  const bool same =
      Variable(environment, "SLURM_PROCID") == Variable(environment, "PMI_RANK") &&
      Variable(environment, "SLURM_STEP_NUM_TASKS") == Variable(environment, "PMI_SIZE");
  if (step.has_value() && same && place.local_size < 0) return "it is Slurm's own PMI";
  return "";
}

std::string FinishSlurm(const Environment& environment, const LaunchFacts&, LaunchPlace& place) {
  const std::string step = FirstSet(environment, "SLURM_STEP_ID SLURM_STEPID");
  uint32_t step_number = 0;
  if (step.empty() || !absl::SimpleAtoi(step, &step_number) || step_number >= kFirstSpecialStep ||
      place.rank < 0) {
    SetNotATask(environment, step, place);
    return "";
  }
  const std::string layout =
      FirstSet(environment, "SLURM_STEP_TASKS_PER_NODE SLURM_TASKS_PER_NODE");
  if (const auto tasks = ExpandTasksPerNode(layout); tasks.ok()) {
    if (place.node_rank >= 0 && place.node_rank < static_cast<int32_t>(tasks->size()))
      place.local_size = (*tasks)[static_cast<size_t>(place.node_rank)];
  } else if (!layout.empty()) {
    place.warnings.push_back(absl::StrCat("Slurm's number of tasks on this node is not known: ",
                                          tasks.status().message()));
  }
  place.run_name = absl::StrCat(place.job_id, ".", step);
  place.instance =
      absl::StrCat("slurm ", Variable(environment, "SLURM_CLUSTER_NAME"), " ", place.job_id, ".",
                   step, " ", Variable(environment, "SLURM_RESTART_COUNT"), " ",
                   FirstSet(environment, "SLURM_STEP_LAUNCHER_PORT SLURM_SRUN_COMM_PORT"), " ",
                   Variable(environment, "SLURM_JOB_START_TIME"));
  place.why = absl::StrCat("task ", place.rank, " of step ", place.job_id, ".", step);
  if (!Variable(environment, "SLURM_HET_SIZE").empty()) {
    place.warnings.push_back(
        "this Slurm job is heterogeneous: rank and size may be those of one component; where they "
        "are, set COORDD_RANK and COORDD_SIZE");
  }
  return "";
}

std::string FinishJobSet(const Environment& environment, const LaunchFacts&, LaunchPlace& place) {
  const auto job = NumberOf(Variable(environment, "JOB_INDEX"), 0);
  const auto pods = NumberOf(Variable(environment, "PROCESSES_IN_JOB"), 1);
  if (job.has_value() && *job > 0 && !pods.has_value())
    return "JOB_INDEX is not 0 and PROCESSES_IN_JOB (the job's parallelism) is not set";
  if (job.has_value() && pods.has_value()) {
    const int64_t global = int64_t{*job} * *pods + place.node_rank;
    if (global > kMaxNumber) return "JOB_INDEX times PROCESSES_IN_JOB is no number of a node";
    place.node_rank = static_cast<int32_t>(global);
  }
  const std::string replicated = Variable(environment, "REPLICATED_JOB_NAME");
  if (!replicated.empty()) {
    place.coordinator_hints.push_back(
        {absl::StrCat(place.job_id, "-", replicated, "-0-0.", place.job_id), 0,
         "JOBSET_NAME and REPLICATED_JOB_NAME"});
  }
  return "";
}

std::string FinishAwsBatch(const Environment& environment, const LaunchFacts& facts,
                           LaunchPlace& place) {
  // The main node has no variable with its own address.
  const bool main_node = Variable(environment, "AWS_BATCH_JOB_MAIN_NODE_INDEX") ==
                         Variable(environment, "AWS_BATCH_JOB_NODE_INDEX");
  if (main_node && place.coordinator_hints.empty() && !facts.hostname.empty())
    place.coordinator_hints.push_back({facts.hostname, 0, "AWS_BATCH_JOB_MAIN_NODE_INDEX"});
  return "";
}

std::string FinishSageMaker(const Environment& environment, const LaunchFacts&,
                            LaunchPlace& place) {
  const std::string self = Variable(environment, "SM_CURRENT_HOST");
  place.nodes = static_cast<int32_t>(place.hosts.size());
  place.node_rank = PositionOf(self, place.hosts);
  if (place.node_rank < 0) return absl::StrCat("SM_CURRENT_HOST ", self, " is not in SM_HOSTS");
  return "";
}

std::string FinishLsf(const Environment& environment, const LaunchFacts& facts,
                      LaunchPlace& place) {
  const auto task = NumberOf(Variable(environment, "LSF_PM_TASKID"), 1);  // counts from 1
  if (!task.has_value()) return FinishHostsOnly(environment, facts, place);
  place.rank = *task - 1;
  place.size = NumberOf(Variable(environment, "LSB_DJOB_NUMPROC"), 1).value_or(-1);
  return "";
}

std::string FinishHostsOnly(const Environment&, const LaunchFacts&, LaunchPlace& place) {
  if (place.hosts.size() > 1) {
    place.nodes = static_cast<int32_t>(place.hosts.size());
    place.not_a_rank = absl::StrCat(
        "this process is the job script of ", place.title, " job ", place.job_id, ", which has ",
        place.hosts.size(), " hosts: start the program with coordrun or mpiexec", kHowToRunAlone);
  }
  return "";
}

}  // namespace coordd
