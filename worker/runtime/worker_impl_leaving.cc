// How a worker ends: a goodbye, a failure, or neither.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "worker/runtime/worker_impl.h"
#include "worker/runtime/worker_runtime.h"

namespace coordd {

absl::Status WorkerImpl::Shutdown(absl::Duration timeout) {
  return EndBy(LeaveRequested{}, timeout);
}

absl::Status WorkerImpl::Fail(const std::string& failure, absl::Duration timeout) {
  return EndBy(LeaveRequested{.failure = failure.empty() ? "an error" : failure}, timeout);
}

absl::Status WorkerImpl::FailByExit(int status, absl::Duration timeout) {
  constexpr int kKept = 0xff;  // what is left of it for whoever waits for the process
  const int kept = status & kKept;
  return Fail(
      absl::StrCat("it exits with status ", status,
                   kept == status ? "" : absl::StrCat(", of which the system keeps ", kept)),
      timeout);
}

absl::Status WorkerImpl::FinishWork(absl::Duration hold, absl::Duration timeout) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  const absl::Time now = clock_.Now();
  MutexLock lock(&mu_);
  if (shutting_down_ || runtime_->control == nullptr) return absl::OkStatus();
  work_finished_ = false;
  runtime_->inbox.PushUnbounded(LeaveRequested{.held_until = now + hold});
  auto is_over = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return work_finished_ || stopped_; };
  if (clock_.Await(&mu_, &changed_, is_over, now + timeout)) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("this rank's collectives had not ended within ", absl::FormatDuration(timeout)));
}

absl::Status WorkerImpl::EndBy(LeaveRequested how, absl::Duration timeout) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  const absl::Time deadline = clock_.Now() + timeout;
  const bool finishes = how.failure.empty();
  {
    MutexLock lock(&mu_);
    if (shutting_down_) {
      // Another thread waits for what this one knows that it will not come to its end.
      if (!shut_down_ && !finishes && runtime_->control != nullptr)
        runtime_->inbox.PushUnbounded(std::move(how));
      while (!shut_down_) changed_.Wait(&mu_);
      return shutdown_status_;
    }
    shutting_down_ = true;
  }
  absl::Status result;
  if (runtime_->control != nullptr) {
    runtime_->inbox.PushUnbounded(std::move(how));
    MutexLock lock(&mu_);
    auto has_stopped = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return stopped_; };
    if (!clock_.Await(&mu_, &changed_, has_stopped, deadline)) {
      result = absl::DeadlineExceededError(
          absl::StrCat("the worker was stopped by force: its collectives had not ended, or coordd "
                       "had not answered, within ",
                       absl::FormatDuration(timeout)));
      runtime_->inbox.PushUnbounded(StopForced{});
      clock_.Await(&mu_, &changed_, has_stopped, absl::InfiniteFuture());
    }
  }
  {
    MutexLock lock(&mu_);
    EndComms(absl::CancelledError("this worker has left the job"));
  }
  TearDown();
  MutexLock lock(&mu_);
  if (status_.ok()) status_ = absl::CancelledError("this worker has left the job");
  shut_down_ = true;
  shutdown_status_ = result;
  changed_.NotifyAll();
  return result;
}

void WorkerImpl::TearDown() {
  Runtime& r = *runtime_;
  r.inbox.Close();
  if (r.control != nullptr) {
    r.control->Join();
    r.control->plane()->Stop();
    r.gpus.TakeKept();  // which ends it
  }
  if (r.control != nullptr) r.control->FailRest(absl::CancelledError("this worker was shut down"));
  if (r.completion != nullptr) r.completion->Stop();
  if (const absl::Status timeline = StopTimeline(); !timeline.ok())
    COORDD_LOG(kWarning, timeline.message());
  {
    // What it has forwarded has ended; the rest fails. Whoever submits now finds it closed.
    MutexLock lock(&r.stager_mu);
    r.stager_ended = true;
    if (r.stager != nullptr) r.stager->Stop();
  }
  r.http.reset();
}

}  // namespace coordd
