#include "bench/collectives/collectives.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "bench/control/server_process.h"
#include "common/base/owned_fd.h"
#include "common/base/status_macros.h"

extern char** environ;

namespace coordd::bench {
namespace {

constexpr int kLookMs = 100;  // how often at who has ended

absl::Status Unavailable(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Ours without what is coordd's, but for which NCCL it opens.
std::vector<std::string> CleanEnvironment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!absl::StartsWith(*variable, "COORDD_") || absl::StartsWith(*variable, "COORDD_NCCL_"))
      variables.emplace_back(*variable);
  }
  return variables;
}

std::vector<std::string> MemberVariables(const CollectivesOptions& options, const HostPort& coordd,
                                         absl::string_view job, int32_t rank) {
  std::vector<std::string> variables = {absl::StrCat("COORDD_ADDR=", coordd.ToString()),
                                        absl::StrCat("COORDD_JOB_ID=", job),
                                        absl::StrCat("COORDD_RANK=", rank),
                                        absl::StrCat("COORDD_SIZE=", options.plan.ranks),
                                        absl::StrCat("COORDD_TRANSPORT=", options.transport),
                                        absl::StrCat("COORDD_HOST_ALGORITHM=", options.algorithm),
                                        absl::StrCat("COORDD_ON_FAILURE=", options.on_failure),
                                        "COORDD_LAUNCHER=none",
                                        "COORDD_LOG_LEVEL=error"};
  if (options.nodes > 1) {
    const int32_t each = options.plan.ranks / options.nodes;
    variables.push_back(absl::StrCat("COORDD_NODE_ID=node", rank / each));
  }
  return variables;
}

std::vector<std::string> RankCommand(const CollectivesOptions& options, const std::string& board) {
  if (!options.on_gpus) return {BesideUs("../bench/collectives_rank"), board, options.peer};
  if (options.launches) return {BesideUs("../bench/gpu_rank"), "launches"};
  const CollectivesPlan& plan = options.plan;
  return {BesideUs("../bench/gpu_rank"), absl::StrCat(plan.bytes_min), absl::StrCat(plan.bytes_max),
          absl::StrCat(plan.seconds), absl::StrCat(plan.operations)};
}

// The ranks of one job; ended with it.
class Ranks {
 public:
  Ranks() = default;
  ~Ranks() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  absl::Status Start(std::vector<std::string> command, std::vector<std::string> environment,
                     int standard_output) {
    std::vector<char*> arguments, variables;
    for (std::string& argument : command) arguments.push_back(argument.data());
    for (std::string& variable : environment) variables.push_back(variable.data());
    arguments.push_back(nullptr);
    variables.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, standard_output, 1);
    pid_t pid = 0;
    errno = posix_spawn(&pid, arguments[0], &actions, nullptr, arguments.data(), variables.data());
    posix_spawn_file_actions_destroy(&actions);
    if (errno != 0) return Unavailable(command.front());
    pids_.push_back(pid);
    return absl::OkStatus();
  }

  // Whether one has failed: then the others wait for it for ever in the bench's own barrier.
  bool OneHasFailed() {
    for (auto pid = pids_.begin(); pid != pids_.end();) {
      int status = 0;
      const bool ended = waitpid(*pid, &status, WNOHANG) != 0;
      failed_ = failed_ || (ended && status != 0);
      pid = ended ? pids_.erase(pid) : pid + 1;
    }
    return failed_;
  }
  // Waits for their own ends, if none has failed. UNAVAILABLE: one has.
  absl::Status Collect() {
    while (!failed_ && !pids_.empty()) {
      int status = 0;
      waitpid(pids_.back(), &status, 0);
      pids_.pop_back();
      failed_ = status != 0;
    }
    return failed_ ? absl::UnavailableError("a rank failed (its reason is above)")
                   : absl::OkStatus();
  }

 private:
  std::vector<pid_t> pids_;
  bool failed_ = false;
};

// `coordd`: nullptr: a peer's ranks.
absl::Status StartRanks(const CollectivesOptions& options, const ServerProcess* coordd,
                        absl::string_view job, int board, int standard_output, Ranks& ranks) {
  std::vector<std::string> environment = CleanEnvironment();
  const std::string file = absl::StrCat("/proc/", getpid(), "/fd/", board);
  environment.push_back(absl::StrCat("COORDD_BENCH_BOARD=", file));
  environment.push_back(absl::StrCat("COORDD_BENCH_PEER=", options.peer));
  if (!options.timeline.empty())
    environment.push_back(absl::StrCat("COORDD_TIMELINE=", options.timeline));
  if (coordd == nullptr)
    return ranks.Start({"/bin/sh", "-c", options.command}, std::move(environment), standard_output);
  for (int32_t rank = 0; rank < options.plan.ranks; ++rank) {
    std::vector<std::string> variables = environment;
    for (std::string& variable : MemberVariables(options, coordd->address(), job, rank))
      variables.push_back(std::move(variable));
    if (options.on_gpus) {
      variables.push_back(absl::StrCat("COORDD_LOCAL_RANK=", rank));
      variables.push_back(absl::StrCat("COORDD_GPU_ALGORITHM=", options.gpu_algorithm));
      if (options.share_gpu) {
        variables.push_back("COORDD_ALLOW_SHARED_GPU=1");
        // Two ranks make a node, which a hierarchy needs: they have to have a GPU each.
        const bool in_pairs = options.gpu_algorithm == "hierarchical";
        variables.push_back(absl::StrCat("NCCL_HOSTID=node", in_pairs ? rank / 2 : rank));
      }
    }
    COORDD_RETURN_IF_ERROR(
        ranks.Start(RankCommand(options, file), std::move(variables), standard_output));
  }
  return absl::OkStatus();
}

absl::Status RunJob(const CollectivesOptions& options, const ServerProcess* coordd,
                    absl::string_view job, absl::FunctionRef<void(absl::string_view)> take) {
  OwnedFd memory(memfd_create("coordd-bench", MFD_CLOEXEC));
  if (memory.get() < 0 || ftruncate(memory.get(), sizeof(Board)) != 0)
    return Unavailable("memory for the ranks' moments");
  if (pwrite(memory.get(), &options.plan, sizeof(options.plan), 0) != sizeof(options.plan))
    return Unavailable("the plan for the ranks");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Unavailable("no pipe");
  const OwnedFd ours(ends[0]);
  OwnedFd theirs(ends[1]);
  Ranks ranks;
  COORDD_RETURN_IF_ERROR(StartRanks(options, coordd, job, memory.get(), theirs.get(), ranks));
  theirs = OwnedFd();
  std::string text;
  // Until the last rank has closed its end.
  for (bool open = true; open;) {
    pollfd waiting = {.fd = ours.get(), .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kLookMs) <= 0) {
      if (ranks.OneHasFailed()) break;
      continue;
    }
    char some[4096];
    const ssize_t size = read(ours.get(), some, sizeof(some));
    open = size > 0;
    if (open) text.append(some, static_cast<size_t>(size));
    for (size_t end = 0; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1))
      take(absl::string_view(text).substr(0, end));
  }
  return ranks.Collect();
}

}  // namespace

const char* const kCollectivesColumns =
    "peer,ranks,op,in_place,bytes,iterations,p50_us,p99_us,p50_from_first_entry_us,mean_b2b_us,"
    "p50_b2b_us,p99_b2b_us,preempted";

const char* const kGpuColumns =
    "op,ranks,bytes,rounds,nccl_us,coordd_us,ratio,added_us,host_us,wait_us";

absl::StatusOr<uint32_t> OperationsFrom(const std::string& list) {
  if (list.empty()) return (1u << kOperations) - 1;
  uint32_t bits = 0;
  for (const absl::string_view name : absl::StrSplit(list, ',')) {
    const auto found = std::find(std::begin(kOperationNames), std::end(kOperationNames), name);
    if (found == std::end(kOperationNames)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--ops: \"", name, "\" is none of allreduce, allgather, broadcast, ",
                       "reduce_scatter, alltoall, barrier, reduce, gather"));
    }
    bits |= 1u << (found - std::begin(kOperationNames));
  }
  return bits;
}

absl::Status CanBeMeasured(const CollectivesOptions& options) {
  if (options.plan.offset % 4 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--offset ", options.plan.offset,
                                                   ": expected a multiple of 4, as floats stand"));
  }
  if (options.plan.ranks % options.nodes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--nodes ", options.nodes, ": ",
                                                   options.plan.ranks,
                                                   " ranks, expected as many on each node"));
  }
  if (options.plan.registered && options.on_failure == "continue") {
    return absl::InvalidArgumentError(
        "--buffers registered: memory is private with on_failure continue, expected raise or end");
  }
  if (options.on_gpus) {
    if (options.command.empty() && options.on_failure != "continue") return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--device cuda: memory of a device cannot be kept for another try, expected --on-failure "
        "raise or end");
  }
  if (options.on_failure == "continue" && options.plan.path == Path::kBare) {
    return absl::InvalidArgumentError(
        "--path bare: comms cannot repeat their calls yet, expected --on-failure raise");
  }
  return absl::OkStatus();
}

absl::Status MeasureCollectives(const CollectivesOptions& options,
                                absl::FunctionRef<void(absl::string_view)> take) {
  std::unique_ptr<ServerProcess> coordd;
  if (options.command.empty()) {
    // On GPUs each cell is new tensors, with a device that is held until all of a round is
    // enqueued: what is planned beside the schedule of the cell before would be staged, and wait
    // for that.
    std::vector<std::string> arguments;
    if (options.on_gpus) arguments = {"--schedule-after", "0"};
    COORDD_ASSIGN_OR_RETURN(coordd, ServerProcess::StartCoordd(arguments));
  }
  for (int32_t repeat = 0; repeat < options.repeats; ++repeat) {
    COORDD_RETURN_IF_ERROR(
        RunJob(options, coordd.get(), absl::StrCat("collectives-", repeat), take));
  }
  if (!options.on_gpus) return absl::OkStatus();
  CollectivesOptions launches = options;
  launches.launches = true;
  COORDD_ASSIGN_OR_RETURN(coordd, ServerProcess::StartCoordd({}));
  return RunJob(launches, coordd.get(), "launches", take);
}

absl::StatusOr<nlohmann::json> CollectivesAsJson(const CollectivesOptions& options) {
  constexpr const char* kPaths[] = {"bare", "scheduled", "negotiated"};
  nlohmann::json rows = nlohmann::json::array(), bars = nlohmann::json::array();
  const std::vector<std::string> names =
      absl::StrSplit(options.on_gpus ? kGpuColumns : kCollectivesColumns, ',');
  COORDD_RETURN_IF_ERROR(MeasureCollectives(options, [&](absl::string_view line) {
    if (absl::ConsumePrefix(&line, "# ")) {
      bars.push_back(std::string(line));
      return;
    }
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    nlohmann::json row;
    for (size_t i = 0; i < std::min(fields.size(), names.size()); ++i) {
      double number = 0;
      if (absl::SimpleAtod(fields[i], &number)) {
        row[names[i]] = number;
      } else {
        row[names[i]] = fields[i];
      }
    }
    rows.push_back(std::move(row));
  }));
  if (options.on_gpus) {
    return nlohmann::json{
        {"ranks", options.plan.ranks}, {"rows", std::move(rows)}, {"bars", std::move(bars)}};
  }
  return nlohmann::json{{"ranks", options.plan.ranks},
                        {"path", kPaths[static_cast<size_t>(options.plan.path)]},
                        {"buffers", options.plan.registered ? "registered" : "private"},
                        {"transport", options.transport},
                        {"on_failure", options.on_failure},
                        {"rows", std::move(rows)}};
}

}  // namespace coordd::bench
