// Who starts the workers, where, and how many on each host. PURE
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/coordrun/plan/launcher_kind.h"
#include "client/coordrun/plan/run_options.h"
#include "common/base/environment.h"
#include "common/launch/host_list.h"
#include "common/launch/launcher_detect.h"

namespace coordd {

// The hosts of LSF's, PBS's or Grid Engine's job, in whose script coordrun runs.
struct AllocatedHosts {
  std::string title;  // "PBS job 4711"
  std::vector<HostSlots> hosts;
};

// What the plan depends on beside the options.
struct PlanInputs {
  Environment environment;
  std::string hostname;  // of this machine
  std::string hostfile;  // contents of --hostfile
  std::optional<AllocatedHosts> allocation = {};
  // The place in a launcher that starts one process on each of several nodes, or does not say how
  // many.
  std::optional<LaunchPlace> pod = {};
  std::optional<LaunchPlace> task = {};  // TaskOf
  // Why the hosts of the scheduler's job in whose script coordrun runs are not known; empty: they
  // are, or there is no such job.
  std::string unusable_hosts = "";
};

// `place` as an allocation: nullopt unless this process is the script of a job of a scheduler that
// gives hosts and starts nothing.
std::optional<AllocatedHosts> AllocationOf(const LaunchPlace& place);

// PlanInputs::unusable_hosts.
std::string UnusableHostsOf(const LaunchPlace& place);

// `place` if this process is one of several, or of nobody says how many, that a launcher of nodes
// starts: a pod.
std::optional<LaunchPlace> PodOf(const LaunchPlace& place);

// COORDD_ADDR and COORDD_SIZE are a worker's: what it means that coordrun has them and starts a job
// of its own, one sentence. Empty: it has none, or takes part in that job.
std::string OverlookedText(const RunOptions& options, const Environment& environment);

// SLURM_JOB_ID may outlive its allocation, in a shell: what to do when srun says so. Empty: nobody
// has been misled by it.
std::string LeftoverText(const RunOptions& options, const Environment& environment);

struct HostRanks {
  std::string host = "";
  std::string user = "";  // for ssh; empty: not said
  bool here = false;      // this machine, by name: no ssh
  int32_t first_rank = 0;
  int32_t count = 0;
  int32_t first_local = 0;    // local rank of the first of them
  int32_t local_size = 0;     // ranks on the host in all; 0: count
  std::string topology = "";  // its COORDD_TOPOLOGY; empty: what it has itself
  friend bool operator==(const HostRanks&, const HostRanks&) = default;
};

struct RunPlan {
  LauncherKind launcher = LauncherKind::kLocal;
  int32_t np = 1;
  std::vector<HostRanks> hosts;  // of ssh; in the order of ranks
  int32_t cpus_per_task = 0;     // of srun, which has not taken it from sbatch since Slurm 22.05
  int32_t tasks_per_node = 0;    // likewise; 0: srun's own choice
  std::string reason;            // why this launcher: "-H names other hosts"
};

// Whether `host` is this machine, by name: with --host-discovery-script 127.x.y.z is, too.
bool IsHere(const RunOptions& options, const std::string& host, const std::string& hostname);

// What a discovery script has found first, as if it had been named by -H; np is what they have room
// for, --max-np at most.
void UseDiscovered(const std::vector<HostSlots>& hosts, RunOptions* options);

// The launcher by the name that whoever has asked for it knows: blaunch's, where it is that.
std::string LauncherName(const RunOptions& options, const RunPlan& plan);

// INVALID_ARGUMENT, FAILED_PRECONDITION: one sentence that says what to do instead.
absl::StatusOr<RunPlan> PlanRun(const RunOptions& options, const PlanInputs& inputs);

}  // namespace coordd
