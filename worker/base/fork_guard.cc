#include "worker/base/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace coordd {

int64_t ForkGuard::Depth() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { depth_in_process.fetch_add(1); });
  COORDD_CHECK(registered == 0);
  return depth_in_process.load(std::memory_order_relaxed);
}

absl::Status ForkGuard::Check() const {
  if (!InChild()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "process ", getpid(),
      " was forked from the one which is the member of the job: only that one can use its worker, "
      "and the child can start none; start child processes before the worker, or not by fork"));
}

}  // namespace coordd
