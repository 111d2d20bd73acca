#include "client/coordrun/plan/run_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/coordrun/plan/ddl_part.h"
#include "client/coordrun/plan/horovod_flag.h"
#include "client/coordrun/plan/nested_launch.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"
#include "common/launch/host_list.h"

namespace coordd {
namespace {

constexpr int32_t kMaxWorkers = 1 << 17;  // coordd's own bound of a job
// Each worker here has two pipes, and file descriptors have a limit of 1024 in most shells.
constexpr int32_t kMaxLocalWorkers = 256;
// Slurm counts steps from 0; what is above this is the batch script or salloc's shell, not a step.
constexpr uint32_t kFirstSpecialStep = 0xfffffff0;

struct Kind {
  const char* name;
  LauncherKind kind;
};
constexpr Kind kKinds[] = {{"local", LauncherKind::kLocal},
                           {"ssh", LauncherKind::kSsh},
                           {"srun", LauncherKind::kSrun},
                           {"mpirun", LauncherKind::kMpirun},
                           {"external", LauncherKind::kExternal},
                           // Another way to the same agents: CommandToHost.
                           {"blaunch", LauncherKind::kSsh}};

int32_t NumberOr(const Environment& environment, const std::string& name, int32_t otherwise) {
  int32_t number = 0;
  return absl::SimpleAtoi(Variable(environment, name), &number) ? number : otherwise;
}

bool InSlurmStep(const Environment& environment) {
  uint32_t step = 0;
  std::string text = Variable(environment, "SLURM_STEP_ID");
  if (text.empty()) text = Variable(environment, "SLURM_STEPID");
  return absl::SimpleAtoi(text, &step) && step < kFirstSpecialStep;
}

bool InSlurmAllocation(const Environment& environment) {
  return !Variable(environment, "SLURM_JOB_ID").empty() && !InSlurmStep(environment);
}

bool Here(const std::string& host, const std::string& hostname) {
  return host == "localhost" || SameHost(host, hostname);
}

// The tasks of the allocation: --ntasks if it was given, else one per node.
int32_t AllocationTasks(const Environment& environment) {
  const int32_t nodes =
      NumberOr(environment, "SLURM_JOB_NUM_NODES", NumberOr(environment, "SLURM_NNODES", 1));
  return NumberOr(environment, "SLURM_NTASKS", nodes);
}

bool GivesHosts(const LaunchPlace& place) {
  return place.launcher == "lsf" || place.launcher == "pbs" || place.launcher == "sge";
}

bool NamesHosts(const RunOptions& options) {
  return !options.hosts.empty() || !options.hostfile.empty();
}

// Who names the hosts, where somebody does.
std::string HostsSource(const RunOptions& options) {
  if (options.ddl.names_hosts) return "DDL_HOST_LIST";
  return options.hosts.empty() ? "--hostfile" : "-H";
}

absl::StatusOr<std::vector<HostSlots>> NamedHosts(const RunOptions& options,
                                                  const PlanInputs& inputs) {
  if (!options.hosts.empty() && !options.hostfile.empty()) {
    return absl::InvalidArgumentError("-H and --hostfile both name hosts: expected one of them");
  }
  const bool file = !options.hostfile.empty();
  auto hosts = file ? ParseHostFile(inputs.hostfile) : ParseHostsOption(options.hosts);
  if (!hosts.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file ? options.hostfile : HostsSource(options),
                                                   ": ", hosts.status().message()));
  }
  if (hosts->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file ? options.hostfile : HostsSource(options),
                                                   " names no host: expected host:slots"));
  }
  return hosts;
}

absl::StatusOr<std::vector<HostSlots>> Hosts(const RunOptions& options, const PlanInputs& inputs) {
  std::vector<HostSlots> hosts;
  if (NamesHosts(options)) {
    COORDD_ASSIGN_OR_RETURN(hosts, NamedHosts(options, inputs));
  } else {
    hosts = inputs.allocation->hosts;
  }
  return hosts;
}

std::string SlotsText(const std::vector<HostSlots>& hosts) {
  constexpr size_t kShown = 8;
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min(hosts.size(), kShown); ++i) {
    texts.push_back(absl::StrCat(hosts[i].host, ":", hosts[i].slots));
  }
  if (hosts.size() > kShown) texts.push_back("...");
  return absl::StrJoin(texts, ",");
}

// Fills the hosts in their order; -np on the only host of an allocation may be more than it says,
// since what schedulers count are often not tasks.
absl::Status PlaceOnHosts(const RunOptions& options, const PlanInputs& inputs, RunPlan* plan) {
  COORDD_ASSIGN_OR_RETURN(std::vector<HostSlots> hosts, Hosts(options, inputs));
  const bool allocated = !NamesHosts(options);
  std::vector<std::string> topologies(hosts.size());
  if (options.ddl.asked()) {
    COORDD_ASSIGN_OR_RETURN(topologies, ShapeHosts(options, allocated, &hosts));
  }
  for (HostSlots& host : hosts) host.slots = std::max(host.slots, 1);
  if (allocated && hosts.size() == 1 && options.np_given) hosts[0].slots = options.np;
  int64_t slots = 0;
  for (const HostSlots& host : hosts) slots += host.slots;
  plan->np =
      options.np_given ? options.np : static_cast<int32_t>(std::min<int64_t>(slots, kMaxWorkers));
  if (plan->np > slots) {
    return absl::InvalidArgumentError(absl::StrCat(
        "-np is ", plan->np, ", but the hosts ",
        allocated ? absl::StrCat("of ", inputs.allocation->title, " ") : std::string(), "have ",
        Counted(slots, "slot"), " (", SlotsText(hosts), "): expected at most that many, or ",
        allocated ? "a job with more tasks (PBS: mpiprocs), or -H" : "hosts with more slots"));
  }
  int32_t rank = 0;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const HostSlots& host = hosts[i];
    const int32_t count = std::min(host.slots, plan->np - rank);
    if (count == 0) break;
    plan->hosts.push_back({.host = host.host,
                           .user = host.user,
                           .here = IsHere(options, host.host, inputs.hostname),
                           .first_rank = rank,
                           .count = count,
                           .topology = topologies[i]});
    rank += count;
  }
  const bool all_here = std::all_of(plan->hosts.begin(), plan->hosts.end(),
                                    [](const HostRanks& host) { return host.here; });
  // What comes later may be elsewhere.
  const bool fixed = options.discovery_script.empty();
  if (fixed && all_here && plan->launcher == LauncherKind::kSsh) {
    plan->launcher = LauncherKind::kLocal;
    plan->reason += ", which is this machine";
    plan->hosts.clear();
  }
  return absl::OkStatus();
}

absl::Status PlanLocal(const RunOptions& options, RunPlan* plan) {
  if (NamesHosts(options)) {
    return absl::InvalidArgumentError(
        "--launcher local starts workers on this machine: expected no -H and no --hostfile");
  }
  plan->np = options.np;
  if (!options.ddl.asked()) return absl::OkStatus();
  COORDD_ASSIGN_OR_RETURN(plan->np, ShapeNodes(options, 1));
  return absl::OkStatus();
}

absl::Status PlanSrun(const RunOptions& options, const PlanInputs& inputs, RunPlan* plan) {
  const Environment& environment = inputs.environment;
  if (!InSlurmAllocation(environment)) {
    return absl::FailedPreconditionError(
        "--launcher srun works inside an allocation: expected sbatch or salloc around coordrun");
  }
  plan->np = options.np_given ? options.np : AllocationTasks(environment);
  if (options.ddl.asked()) {
    COORDD_ASSIGN_OR_RETURN(const DdlShape shape, DdlShapeOf(options));
    if (shape.racks > 1 || shape.aisles > 1) {
      return absl::InvalidArgumentError(
          "racks and aisles with launcher srun, whose order of nodes is Slurm's "
          "(topology.conf): expected --accelerators alone, or -H with the hosts for ssh");
    }
    const int32_t nodes =
        NumberOr(environment, "SLURM_JOB_NUM_NODES", NumberOr(environment, "SLURM_NNODES", 1));
    COORDD_ASSIGN_OR_RETURN(plan->tasks_per_node, ShapeNodes(options, nodes));
    plan->np = nodes * plan->tasks_per_node;
  }
  plan->cpus_per_task = NumberOr(environment, "SLURM_CPUS_PER_TASK", 0);
  return absl::OkStatus();
}

// A job script whose hosts are not known is not a run of this machine alone.
absl::Status CheckHosts(const RunOptions& options, const PlanInputs& inputs) {
  const bool says_how = !options.launcher.empty() || !options.coordinator.empty() ||
                        options.size != 0 || NamesHosts(options) ||
                        !options.discovery_script.empty();
  if (inputs.unusable_hosts.empty() || says_how) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(inputs.unusable_hosts,
                   "; expected -H HOST:SLOTS,... or --hostfile, or --launcher local for a run of "
                   "this machine alone"));
}

LauncherKind Choose(const RunOptions& options, const PlanInputs& inputs, RunPlan* plan) {
  if (!options.launcher.empty()) {
    plan->reason = absl::StrCat("--launcher ", options.launcher);
    return *LauncherFrom(options.launcher);
  }
  if (!options.discovery_script.empty()) {
    plan->reason = "--host-discovery-script names hosts";
    return LauncherKind::kSsh;
  }
  if (NamesHosts(options)) {
    plan->reason = absl::StrCat(HostsSource(options), " names hosts");
    return LauncherKind::kSsh;
  }
  // With a coordd that runs elsewhere, -np counts the workers of this machine.
  const bool whole = options.coordinator.empty() && options.size == 0;
  if (inputs.allocation.has_value() && whole) {
    plan->reason = absl::StrCat("inside ", inputs.allocation->title);
    return LauncherKind::kSsh;
  }
  if (InSlurmAllocation(inputs.environment) && whole) {
    plan->reason =
        absl::StrCat("inside Slurm's allocation ", Variable(inputs.environment, "SLURM_JOB_ID"));
    return LauncherKind::kSrun;
  }
  plan->reason = options.pods.take_part()
                     ? absl::StrCat("pod ", inputs.pod->node_rank, " of ", inputs.pod->title)
                     : "no other host is named";
  return LauncherKind::kLocal;
}

// Before coordd refuses it, which speaks of flags of its own.
absl::Status CheckTls(const RunOptions& options, const RunPlan& plan) {
  const auto& own = options.coordd_arguments;
  const bool insecure = std::find(own.begin(), own.end(), "--insecure") != own.end();
  if (options.tls || !options.coordinator.empty() || !options.listen.empty() || insecure ||
      plan.launcher == LauncherKind::kLocal) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--no-tls with launcher ", LauncherName(options, plan), " (", plan.reason,
      "): without TLS anybody in the network could join the job; expected no --no-tls, or --listen "
      "127.0.0.1:0 where all workers are on this machine"));
}

// The others would run an empty program, and the job end before it begins.
absl::Status CheckInput(const RunOptions& options, const RunPlan& plan) {
  const int32_t all = std::max(plan.np, options.size);
  if (all == 1 || !ReadsProgramFromInput(options.command)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      options.command[0], " - reads its program from stdin, which at most rank 0 of the ", all,
      " workers has: expected a file, such as ", options.command[0], " train.py"));
}

// Racks and aisles are told to each host on its own.
absl::Status CheckDdl(const RunOptions& options, const RunPlan& plan) {
  if (!options.ddl.asked()) return absl::OkStatus();
  if (options.pods.take_part()) {
    return absl::InvalidArgumentError(
        "ddlrun's flags in a pod: expected -np with the workers of each pod, and COORDD_SIZE with "
        "those of all where the launcher does not say how many pods there are");
  }
  const bool placed = std::any_of(plan.hosts.begin(), plan.hosts.end(),
                                  [](const HostRanks& host) { return !host.topology.empty(); });
  const bool alike = plan.launcher == LauncherKind::kMpirun && placed;
  if (!alike && plan.launcher != LauncherKind::kExternal) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "ddlrun's topology with launcher ", ToString(plan.launcher),
      ", which gives all workers the same variables: expected hosts with -H and no --launcher, or "
      "COORDD_TOPOLOGY=aisle1/rack2 on each host"));
}

// What only the whole plan tells.
absl::Status CheckPlan(const RunOptions& options, const RunPlan& plan) {
  COORDD_RETURN_IF_ERROR(CheckDdl(options, plan));
  COORDD_RETURN_IF_ERROR(CheckTls(options, plan));
  return CheckInput(options, plan);
}

}  // namespace

std::optional<AllocatedHosts> AllocationOf(const LaunchPlace& place) {
  if (!GivesHosts(place) || place.is_rank() || place.hosts.empty()) return std::nullopt;
  AllocatedHosts allocation;
  allocation.title = absl::StrCat(place.title, " job ", place.job_id);
  for (size_t i = 0; i < place.hosts.size(); ++i) {
    allocation.hosts.push_back({.host = place.hosts[i], .slots = place.host_slots[i]});
  }
  return allocation;
}

std::string UnusableHostsOf(const LaunchPlace& place) {
  if (!GivesHosts(place) || place.is_rank() || place.unusable_hosts.empty()) return "";
  return absl::StrCat("this is the job script of ", place.title, " job ", place.job_id,
                      ", whose hosts are not known (", place.unusable_hosts, ")");
}

std::string LeftoverText(const RunOptions& options, const Environment& environment) {
  const std::string job = Variable(environment, "SLURM_JOB_ID");
  if (job.empty() || !options.launcher.empty()) return "";
  return absl::StrCat("if SLURM_JOB_ID=", job,
                      " is left over from an allocation that has ended, unset it, or give "
                      "--launcher local for workers on this machine");
}

std::string ToString(LauncherKind kind) {
  for (const Kind& known : kKinds) {
    if (known.kind == kind) return known.name;
  }
  return "";
}

std::string LauncherName(const RunOptions& options, const RunPlan& plan) {
  // Nothing but the program that is called differs.
  const bool is_blaunch = plan.launcher == LauncherKind::kSsh && options.launcher == "blaunch";
  return is_blaunch ? options.launcher : ToString(plan.launcher);
}

std::optional<LauncherKind> LauncherFrom(const std::string& name) {
  for (const Kind& known : kKinds) {
    if (name == known.name) return known.kind;
  }
  return std::nullopt;
}

bool IsHere(const RunOptions& options, const std::string& host, const std::string& hostname) {
  if (!options.launcher.empty()) return false;
  return Here(host, hostname) ||
         (!options.discovery_script.empty() && absl::StartsWith(host, "127."));
}

void UseDiscovered(const std::vector<HostSlots>& hosts, RunOptions* options) {
  std::vector<std::string> named;
  int64_t slots = 0;
  for (const HostSlots& host : hosts) {
    const bool address = absl::StrContains(host.host, ':');
    named.push_back(absl::StrCat(address ? "[" : "", host.host, address ? "]:" : ":", host.slots));
    slots += host.slots;
  }
  if (options->min_np == 0) options->min_np = options->np_given ? options->np : 1;
  const int64_t most = options->max_np > 0 ? options->max_np : kMaxWorkers;
  options->np = static_cast<int32_t>(std::min(slots, most));
  options->np_given = true;
  options->hosts = absl::StrJoin(named, ",");
}

std::optional<LaunchPlace> PodOf(const LaunchPlace& place) {
  if (!place.node_level || place.nodes == 1) return std::nullopt;
  return place;
}

std::string OverlookedText(const RunOptions& options, const Environment& environment) {
  if (!options.coordinator.empty() || options.pods.take_part()) return "";
  std::vector<std::string> found;
  std::string expected;
  const std::string address = Variable(environment, "COORDD_ADDR");
  if (address.empty() || address == "auto") return "";
  found.push_back(absl::StrCat("COORDD_ADDR=", address));
  absl::StrAppend(&expected, "--coordinator ", address);
  const std::string size = Variable(environment, "COORDD_SIZE");
  if (!size.empty()) found.push_back(absl::StrCat("COORDD_SIZE=", size));
  if (!size.empty()) absl::StrAppend(&expected, " --size ", size, " --first-rank RANK");
  return absl::StrCat(absl::StrJoin(found, " and "), found.size() == 1 ? " is" : " are",
                      " not looked at: this run is a job of its own, with a coordd of its own; "
                      "expected ",
                      expected, " for workers of that job");
}

absl::StatusOr<RunPlan> PlanRun(const RunOptions& options, const PlanInputs& inputs) {
  RunPlan plan;
  COORDD_RETURN_IF_ERROR(CheckTask(options, inputs.task));
  COORDD_RETURN_IF_ERROR(CheckHosts(options, inputs));
  plan.launcher = Choose(options, inputs, &plan);
  const bool hosts = NamesHosts(options) || inputs.allocation.has_value();
  switch (plan.launcher) {
    case LauncherKind::kLocal:
      COORDD_RETURN_IF_ERROR(PlanLocal(options, &plan));
      break;
    case LauncherKind::kSsh:
      if (!hosts) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--launcher ", options.launcher, ": expected -H HOST:SLOTS,... or --hostfile",
            options.launcher == "blaunch" ? ", or a job of LSF around coordrun" : ""));
      }
      COORDD_RETURN_IF_ERROR(PlaceOnHosts(options, inputs, &plan));
      break;
    case LauncherKind::kSrun:
      COORDD_RETURN_IF_ERROR(PlanSrun(options, inputs, &plan));
      break;
    case LauncherKind::kMpirun:
      if (hosts) COORDD_RETURN_IF_ERROR(PlaceOnHosts(options, inputs, &plan));
      if (!hosts) plan.np = options.np;
      break;
    case LauncherKind::kExternal:
      plan.np = options.np;
      break;
  }
  if (plan.launcher != LauncherKind::kLocal && (options.size != 0 || options.first_rank != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--size and --first-rank are for workers on this machine; the launcher is ",
                     ToString(plan.launcher), ": expected -np alone"));
  }
  const int32_t most = plan.launcher == LauncherKind::kLocal ? kMaxLocalWorkers : kMaxWorkers;
  if (plan.np < 1 || plan.np > most) {
    return absl::InvalidArgumentError(absl::StrCat("-np is ", plan.np, ": expected 1 to ", most));
  }
  COORDD_RETURN_IF_ERROR(CheckCommand(options, plan.np));
  if (options.min_np > std::max(plan.np, options.size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min-np is ", options.min_np, ": expected at most -np, ", plan.np));
  }
  COORDD_RETURN_IF_ERROR(CheckPlan(options, plan));
  if (options.max_restarts > 0 &&
      (options.min_np == 0 || plan.launcher == LauncherKind::kExternal)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-restarts is ", options.max_restarts,
                     ": expected --min-np with it, and launcher local, ssh or srun"));
  }
  if (options.min_np > 0 && plan.launcher == LauncherKind::kMpirun) {
    return absl::InvalidArgumentError(
        "--min-np with launcher mpirun, which ends all processes when one fails: expected ssh, "
        "srun "
        "or local");
  }
  return plan;
}

}  // namespace coordd
