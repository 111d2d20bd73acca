#include "client/coordrun/plan/nested_launch.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

// How users start tasks with each launcher of the table of launchers.
struct Starter {
  const char* launcher;
  const char* command;
};
constexpr Starter kStarters[] = {
    {"coordd", "coordrun"},     {"horovod", "horovodrun"}, {"torchrun", "torchrun"},
    {"jsm", "jsrun"},           {"openmpi", "mpirun"},     {"mvapich2", "mpirun_rsh"},
    {"pals", "mpiexec"},        {"hydra", "mpiexec"},      {"flux", "flux run"},
    {"slurm", "srun"},          {"pmix", "prun"},          {"lsf", "blaunch"},
    {"condor", "condor_submit"}};

std::string StarterOf(const std::string& launcher) {
  const auto* found =
      std::find_if(std::begin(kStarters), std::end(kStarters),
                   [&](const Starter& starter) { return launcher == starter.launcher; });
  return found == std::end(kStarters) ? launcher : found->command;
}

// "one of 4 tasks of a Slurm step".
std::string TaskText(const LaunchPlace& task) {
  const std::string whose = task.launcher == "slurm" ? "a Slurm step" : StarterOf(task.launcher);
  return task.size > 0 ? absl::StrCat("one of ", task.size, " tasks of ", whose)
                       : absl::StrCat("task ", task.rank, " of ", whose,
                                      ", which does not say how many there are");
}

// Programs that start the processes of a job. Those of `joins` become one job of all when they are
// told of each other.
struct Launching {
  const char* name;
  const char* joins = "";
};
constexpr Launching kLaunching[] = {{"torchrun", "--nnodes"},
                                    {"torch.distributed.run", "--nnodes"},
                                    {"torch.distributed.launch", "--nnodes"},
                                    {"mpirun"},
                                    {"mpiexec"},
                                    {"srun"},
                                    {"jsrun"},
                                    {"ddlrun"},
                                    {"bede-ddlrun"},
                                    {"horovodrun"}};

const Launching* LaunchingOf(const std::vector<std::string>& command) {
  for (size_t i = 0; i < command.size(); ++i) {
    const bool module = i > 0 && command[i - 1] == "-m";
    const std::string name = command[i].substr(command[i].find_last_of('/') + 1);
    // The program itself, or what a python runs.
    if (i > 0 && !module) continue;
    for (const Launching& known : kLaunching)
      if (name == known.name) return &known;
    if (module) return nullptr;
  }
  return nullptr;
}

// "--nnodes 2", "--nnodes=2:4", also with an underscore or abbreviated: not 1.
bool JoinsOthers(const Launching& launching, const std::vector<std::string>& command) {
  const std::string option = launching.joins;
  if (option.empty()) return false;
  for (size_t i = 0; i < command.size(); ++i) {
    if (command[i] == option) return i + 1 < command.size() && command[i + 1] != "1";
    if (absl::StartsWith(command[i], option + "=")) return command[i] != option + "=1";
  }
  return false;
}

}  // namespace

std::optional<LaunchPlace> TaskOf(const LaunchPlace& place) {
  if (!place.is_rank() || place.node_level || place.size == 1) return std::nullopt;
  return place;
}

absl::Status CheckTask(const RunOptions& options, const std::optional<LaunchPlace>& task) {
  const bool says_how =
      options.launcher == "local" || !options.coordinator.empty() || options.size != 0;
  if (!task.has_value() || says_how) return absl::OkStatus();
  const std::string starter = StarterOf(task->launcher);
  const std::string count = task->size > 0 ? absl::StrCat(task->size) : "N";
  const bool is_coordrun = task->launcher == "coordd";
  return absl::FailedPreconditionError(absl::StrCat(
      "this is ", TaskText(*task), " (", task->why,
      "), and each of them would start a run of its own: expected ",
      is_coordrun ? absl::StrCat("'coordrun -np ", count, " ", options.command[0],
                                 " ...' without another coordrun inside")
                  : absl::StrCat("'", starter, starter == "srun" ? " -n " + count : " ...", " ",
                                 options.command[0], " ...' without coordrun, or coordrun without ",
                                 starter, " around it"),
      ", for one job of all; --launcher local is a run of this task alone"));
}

absl::Status CheckCommand(const RunOptions& options, int32_t np) {
  const Launching* launching = LaunchingOf(options.command);
  if (launching == nullptr || np < 2 || !options.launcher.empty()) return absl::OkStatus();
  if (JoinsOthers(*launching, options.command)) return absl::OkStatus();
  const bool joins = launching->joins[0] != '\0';
  return absl::FailedPreconditionError(absl::StrCat(
      "the command is ", launching->name, ", which starts the processes of a job itself: each of ",
      np, " workers would start a job of its own; expected 'coordrun -np N PROGRAM ...' without it",
      joins ? absl::StrCat(", or ", launching->joins, " ", np, " for one job of all") : "",
      "; --launcher local, or another, is a job of each worker's own"));
}

}  // namespace coordd
