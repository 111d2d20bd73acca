#include "worker/fork_guard.h"

#include "absl/strings/str_cat.h"

namespace coordd {

absl::Status ForkGuard::Check() const {
  if (!InChild()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("process ", getpid(), " was forked from process ", pid_,
                   ", which is the member of the job: only that one can use this worker; start "
                   "child processes before the worker, or join with a worker of their own"));
}

}  // namespace coordd
