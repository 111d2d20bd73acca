#include "client/coordrun/plan/thread_share.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr char kThreadsName[] = "OMP_NUM_THREADS";

bool SeveralShareAHost(const RunPlan& plan, const Environment& environment) {
  if (!plan.hosts.empty()) {
    return std::any_of(plan.hosts.begin(), plan.hosts.end(), [](const HostRanks& host) {
      return std::max(host.count, host.local_size) > 1;
    });
  }
  int32_t nodes = 1;
  const bool spread = plan.launcher == LauncherKind::kSrun &&
                      absl::SimpleAtoi(Variable(environment, "SLURM_JOB_NUM_NODES"), &nodes);
  return spread ? plan.np > nodes : plan.np > 1;
}

}  // namespace

int32_t ThreadsEach(int32_t cores, int32_t workers) {
  return workers < 2 ? 0 : std::max(1, cores / workers);
}

int32_t ThreadsOfTask(int32_t cores, int32_t workers, int32_t node_cores) {
  if (workers < 2) return 0;
  const bool own = int64_t{cores} * workers <= node_cores;
  return own ? std::max(1, cores) : ThreadsEach(cores, workers);
}

Environment ThreadVariables(int32_t threads, const Environment& environment) {
  if (threads < 1 || environment.contains(kThreadsName)) return {};
  return {{kThreadsName, absl::StrCat(threads)}};
}

std::string ThreadsNote(const RunOptions& options, const RunPlan& plan,
                        const Environment& environment, int32_t cores) {
  const bool given = environment.contains(kThreadsName) ||
                     std::any_of(options.variables.begin(), options.variables.end(),
                                 [](const auto& set) { return set.first == kThreadsName; });
  const bool starts = plan.launcher != LauncherKind::kExternal;
  if (given || !options.torch_env || !starts || !SeveralShareAHost(plan, environment)) return "";
  const std::string value =
      plan.launcher == LauncherKind::kLocal
          ? absl::StrCat(kThreadsName, "=", ThreadsEach(cores, plan.np),
                         " for each worker: its share of ", cores, cores == 1 ? " core" : " cores")
          : absl::StrCat(kThreadsName, " of each worker is its share of its host's cores");
  return absl::StrCat(value, " (-x ", kThreadsName, "=N for another)");
}

}  // namespace coordd
