#include "bench/recovery/spinning.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"

extern char** environ;

namespace coordd::bench {
namespace {

// Looks now and then whether this process is still there.
constexpr char kScript[] =
    "while kill -0 $PPID 2>/dev/null; do i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; done";

}  // namespace

absl::StatusOr<SpinningProcesses> SpinningProcesses::Start(int32_t count) {
  SpinningProcesses started;
  for (int32_t i = 0; i < count; ++i) {
    char shell[] = "/bin/sh", from_text[] = "-c", script[sizeof(kScript)];
    std::memcpy(script, kScript, sizeof(kScript));
    char* const arguments[] = {shell, from_text, script, nullptr};
    pid_t pid = 0;
    const int error = posix_spawn(&pid, shell, nullptr, nullptr, arguments, environ);
    if (error != 0) return absl::UnavailableError(absl::StrCat(shell, ": ", std::strerror(error)));
    started.pids_.push_back(pid);
  }
  return started;
}

SpinningProcesses::~SpinningProcesses() {
  for (const pid_t pid : pids_) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

}  // namespace coordd::bench
