#include "bench/recovery/ranks.h"

#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/control/server_process.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"

extern char** environ;

namespace coordd::bench {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(1);  // how often at who has ended

std::vector<std::string> EnvironmentOf(const std::string& coordd, const RecoveryJob& job,
                                       int32_t rank) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!absl::StartsWith(*variable, "COORDD_")) variables.emplace_back(*variable);
  }
  std::vector<std::string> ours = {
      absl::StrCat("ADDR=", coordd),
      absl::StrCat("JOB_ID=", job.name),
      absl::StrCat("MIN_WORKERS=", job.grows ? job.workers : job.workers - 1),
      absl::StrCat("MAX_WORKERS=", job.grows ? job.workers + 1 : job.workers),
      absl::StrCat("ON_FAILURE=", job.on_failure),
      "LAUNCHER=none",
      "LOG_LEVEL=error"};
  if (!job.grows) {
    ours.push_back(absl::StrCat("RANK=", rank));
    ours.push_back(absl::StrCat("SIZE=", job.workers));
  }
  for (const std::string& variable : ours) variables.push_back(absl::StrCat("COORDD_", variable));
  return variables;
}

absl::StatusOr<pid_t> Spawn(std::vector<std::string> command,
                            std::vector<std::string> environment) {
  std::vector<char*> arguments, variables;
  for (std::string& argument : command) arguments.push_back(argument.data());
  for (std::string& variable : environment) variables.push_back(variable.data());
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, arguments[0], nullptr, nullptr, arguments.data(), variables.data());
  if (error == 0) return pid;
  return absl::UnavailableError(absl::StrCat(command[0], ": ", std::strerror(error)));
}

}  // namespace

void Pause(absl::Duration duration) {
  Mutex mu;
  CondVar never;
  MutexLock lock(&mu);
  Clock& clock = Clock::Real();
  clock.Await(
      &mu, &never, [] { return false; }, clock.Now() + duration);
}

absl::StatusOr<std::unique_ptr<RecoveryRanks>> RecoveryRanks::Start(const std::string& coordd,
                                                                    const RecoveryJob& job) {
  std::unique_ptr<RecoveryRanks> ranks(new RecoveryRanks(coordd, job));
  ranks->memory_ = OwnedFd(memfd_create("coordd-bench", MFD_CLOEXEC));
  const int file = ranks->memory_.get();
  void* const memory =
      file < 0 || ftruncate(file, sizeof(RecoveryBoard)) != 0
          ? MAP_FAILED
          : mmap(nullptr, sizeof(RecoveryBoard), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED)
    return absl::UnavailableError(absl::StrCat("memory for the board: ", std::strerror(errno)));
  ranks->board_ = new (memory) RecoveryBoard();
  ranks->board_->elements = job.elements;
  ranks->board_->takes_newcomers = job.grows ? 1 : 0;
  ranks->board_->goes_on = job.on_failure == "continue" ? 1 : 0;
  for (int32_t rank = 0; rank < job.workers; ++rank) COORDD_RETURN_IF_ERROR(ranks->Add());
  return ranks;
}

absl::Status RecoveryRanks::Add() {
  const int32_t slot = workers();
  const std::string path = absl::StrCat("/proc/", getpid(), "/fd/", memory_.get());
  COORDD_ASSIGN_OR_RETURN(const pid_t pid,
                          Spawn({BesideUs("../bench/recovery_rank"), path, absl::StrCat(slot)},
                                EnvironmentOf(coordd_, job_, slot)));
  pids_.push_back(pid);
  return absl::OkStatus();
}

RecoveryRanks::~RecoveryRanks() {
  for (const pid_t pid : pids_) {
    if (pid == 0) continue;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  if (board_ != nullptr) munmap(board_, sizeof(RecoveryBoard));
}

void RecoveryRanks::Hit(int32_t worker, int signal) {
  kill(pid(worker), signal);
  hit_ = worker;
}

bool RecoveryRanks::GivesUp(int32_t worker, absl::Duration timeout) {
  kill(pid(worker), SIGCONT);
  const absl::Time deadline = absl::Now() + timeout;
  int status = 0;
  while (waitpid(pid(worker), &status, WNOHANG) == 0) {
    if (absl::Now() >= deadline) return false;
    Pause(kLook);
  }
  pids_[static_cast<size_t>(worker)] = 0;
  return WIFEXITED(status) && WEXITSTATUS(status) != 0;
}

int32_t RecoveryRanks::Stop(absl::Duration timeout) {
  board_->stop = 1;
  const absl::Time deadline = absl::Now() + timeout;
  int32_t bad = 0;
  for (int32_t worker = 0; worker < workers(); ++worker) {
    pid_t& pid = pids_[static_cast<size_t>(worker)];
    int status = 0;
    pid_t ended = 0;
    if (pid == 0) continue;
    while ((ended = waitpid(pid, &status, WNOHANG)) == 0 && absl::Now() < deadline) Pause(kLook);
    if (!is_hit(worker) && (ended == 0 || status != 0)) ++bad;
    if (ended != 0) pid = 0;
  }
  return bad;
}

}  // namespace coordd::bench
