#include "bench/control/process_start.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/control/server_process.h"
#include "bench/control/statistics.h"
#include "common/base/owned_fd.h"
#include "common/base/status_macros.h"

extern char** environ;

namespace coordd::bench {
namespace {

constexpr int kTimeoutMs = 60000;  // of one launch; against hangs only

// What the ranks run under, besides what is in our environment already.
std::vector<std::string> EnvironmentOf(const HostPort& coordd, const std::string& job,
                                       int32_t ranks, int32_t rank) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!absl::StartsWith(*variable, "COORDD_")) variables.emplace_back(*variable);
  }
  variables.push_back(absl::StrCat("COORDD_ADDR=", coordd.ToString()));
  variables.push_back(absl::StrCat("COORDD_JOB_ID=", job));
  variables.push_back(absl::StrCat("COORDD_RANK=", rank));
  variables.push_back(absl::StrCat("COORDD_SIZE=", ranks));
  variables.push_back("COORDD_LAUNCHER=none");
  return variables;
}

// The processes of one launch, ended when it is.
class Launch {
 public:
  Launch() = default;
  ~Launch() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  absl::Status Spawn(const std::string& program, std::vector<std::string> environment,
                     int standard_output) {
    std::vector<char*> variables;
    for (std::string& variable : environment) variables.push_back(variable.data());
    variables.push_back(nullptr);
    std::string name = program;
    char* const arguments[] = {name.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, standard_output, 1);
    pid_t pid = 0;
    const int error =
        posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments, variables.data());
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
      return absl::UnavailableError(absl::StrCat(program, ": ", std::strerror(error)));
    pids_.push_back(pid);
    return absl::OkStatus();
  }

  // Waits for their own ends. UNAVAILABLE: one failed.
  absl::Status Collect() {
    while (!pids_.empty()) {
      int status = 0;
      waitpid(pids_.back(), &status, 0);
      pids_.pop_back();
      if (status != 0) return absl::UnavailableError("a rank failed (its reason is above)");
    }
    return absl::OkStatus();
  }

 private:
  std::vector<pid_t> pids_;
};

// Moments of the last rank, in nanoseconds of the monotonic clock.
struct Moments {
  int64_t main = 0, joined = 0, barrier = 0;
};

absl::StatusOr<Moments> ReadMoments(int fd, int32_t ranks) {
  Moments last;
  std::string text;
  while (std::count(text.begin(), text.end(), '\n') < ranks) {
    pollfd waiting = {.fd = fd, .events = POLLIN, .revents = 0};
    char some[4096];
    const ssize_t size =
        poll(&waiting, 1, kTimeoutMs) > 0 ? read(fd, some, sizeof(some)) : ssize_t{0};
    if (size <= 0)
      return absl::UnavailableError("not every rank came through its barrier within a minute");
    text.append(some, static_cast<size_t>(size));
  }
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ');
    Moments one;
    if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &one.main) ||
        !absl::SimpleAtoi(fields[1], &one.joined) || !absl::SimpleAtoi(fields[2], &one.barrier))
      return absl::InternalError(absl::StrCat("a rank said \"", line, "\""));
    last.main = std::max(last.main, one.main);
    last.joined = std::max(last.joined, one.joined);
    last.barrier = std::max(last.barrier, one.barrier);
  }
  return last;
}

struct LaunchSeries {
  std::vector<double> main_ms, joined_ms, barrier_ms;
};

// `coordd`: nullptr: one is started, and is part of the launch.
absl::Status LaunchOnce(const ServerProcess* coordd, const std::string& job, int32_t ranks,
                        LaunchSeries& series) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return absl::UnavailableError(absl::StrCat("no pipe: ", std::strerror(errno)));
  const OwnedFd ours(ends[0]);
  OwnedFd theirs(ends[1]);
  std::unique_ptr<ServerProcess> own;
  const int64_t start = std::chrono::steady_clock::now().time_since_epoch().count();
  if (coordd == nullptr) {
    COORDD_ASSIGN_OR_RETURN(own, ServerProcess::StartCoordd({}));
    coordd = own.get();
  }
  Launch launch;
  const std::string program = BesideUs("../bench/rendezvous_rank");
  for (int32_t rank = 0; rank < ranks; ++rank) {
    COORDD_RETURN_IF_ERROR(
        launch.Spawn(program, EnvironmentOf(coordd->address(), job, ranks, rank), theirs.get()));
  }
  theirs = OwnedFd();  // so that the ranks' end is seen
  COORDD_ASSIGN_OR_RETURN(const Moments last, ReadMoments(ours.get(), ranks));
  COORDD_RETURN_IF_ERROR(launch.Collect());
  const auto ms = [start](int64_t moment) { return static_cast<double>(moment - start) / 1e6; };
  series.main_ms.push_back(ms(last.main));
  series.joined_ms.push_back(ms(last.joined));
  series.barrier_ms.push_back(ms(last.barrier));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<nlohmann::json> MeasureProcesses(const ProcessOptions& options) {
  COORDD_ASSIGN_OR_RETURN(const auto coordd, ServerProcess::StartCoordd({}));
  LaunchSeries there, started;
  for (int32_t round = 0; round < options.rounds; ++round) {
    const std::string job = absl::StrCat("launch-", round);
    COORDD_RETURN_IF_ERROR(LaunchOnce(coordd.get(), job, options.ranks, there));
    COORDD_RETURN_IF_ERROR(LaunchOnce(nullptr, job, options.ranks, started));
  }
  return nlohmann::json{{"ranks", options.ranks},
                        {"rounds", options.rounds},
                        {"main_ms", Median(there.main_ms)},
                        {"joined_ms", Median(there.joined_ms)},
                        {"first_barrier_ms", Median(there.barrier_ms)},
                        {"first_barrier_min_ms", Quantile(there.barrier_ms, 0)},
                        {"first_barrier_with_coordd_ms", Median(started.barrier_ms)}};
}

}  // namespace coordd::bench
