#include "worker/work.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace coordd {

absl::Status Work::Wait(absl::Time deadline) {
  // Before the lock: in a forked child another thread may have held it for ever.
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  MutexLock lock(&mu_);
  auto is_done = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return done_; };
  if (!clock_.Await(&mu_, &completed_, is_done, deadline)) {
    return absl::DeadlineExceededError(
        absl::StrCat("tensor ", spec_.name, ": still running when the wait for it ended"));
  }
  return status_;
}

bool Work::done() const {
  if (fork_guard_.InChild()) return false;
  MutexLock lock(&mu_);
  return done_;
}

const WorkResult& Work::result() const {
  MutexLock lock(&mu_);
  COORDD_CHECK(done_ && status_.ok());
  return result_;  // never changes again
}

void Work::OnComplete(std::function<void(const absl::Status&)> f) {
  absl::Status status = fork_guard_.Check();
  if (status.ok()) {
    MutexLock lock(&mu_);
    if (!done_) {
      callbacks_.push_back(std::move(f));
      return;
    }
    status = status_;
  }
  f(status);
}

bool Work::has_callbacks() const {
  MutexLock lock(&mu_);
  return !callbacks_.empty();
}

void Work::Complete(absl::Status status, WorkResult result) {
  std::vector<std::function<void(const absl::Status&)>> callbacks;
  {
    MutexLock lock(&mu_);
    COORDD_CHECK(!done_);
    done_ = true;
    status_ = status;
    result_ = std::move(result);
    callbacks.swap(callbacks_);
  }
  completed_.NotifyAll();
  for (auto& callback : callbacks) callback(status);
}

}  // namespace coordd
