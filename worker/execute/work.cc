#include "worker/execute/work.h"

#include <sched.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

// Twice what a launch takes with NCCL's thread for it (54 us on an H100).
constexpr absl::Duration kEnqueueSpin = absl::Microseconds(100);
constexpr int kEnqueuePollsMax = 10000;  // a test's clock may stand still

}  // namespace

Work::Waiter::~Waiter() {
  work_.waiters_.fetch_sub(1);
  if (!work_.done() && work_.seat_ != nullptr) work_.seat_->Decline();
}

absl::Status Work::Wait(absl::Time deadline) {
  // Before the lock: in a forked child another thread may have held it for ever.
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  DriveIt(deadline);
  std::optional<Waiter> waiter;
  if (!done() && seat_ != nullptr) waiter.emplace(*this);
  while (!done()) {
    if (seat_ != nullptr && seat_->TryTake()) {
      seat_->DriveFor(*this, deadline);
      if (done()) break;
    }
    MutexLock lock(&mu_);
    auto woken = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return done() || nudged_; };
    const bool in_time = clock_.Await(&mu_, &changed_, woken, deadline);
    if (!done() && !in_time) return StillRunning();
    nudged_ = false;
  }
  return Tell(ended());
}

void Work::DriveIt(absl::Time deadline) const {
  if (!drive_ || enqueued() || done() || clock_.Now() >= deadline) return;
  drive_(*this, deadline);
  if (spec_->memory == MemoryKind::kHost) return;
  // The thread "device" may be at it: it is through sooner than this one would be woken.
  const absl::Time until = std::min(deadline, clock_.Now() + kEnqueueSpin);
  for (int polls = 0; polls < kEnqueuePollsMax && !enqueued() && !done(); ++polls) {
    if (clock_.Now() >= until) return;
    sched_yield();
  }
}

absl::Status Work::Tell(absl::Status ended) const {
  if (!ended.ok() && told_) told_();
  return ended;
}

absl::Status Work::StillRunning() const {
  return absl::DeadlineExceededError(
      absl::StrCat("tensor ", spec_->name, ": still running when the wait for it ended"));
}

absl::StatusOr<std::shared_ptr<DeviceEvent>> Work::AwaitEnqueued(absl::Time deadline) {
  // What the host carries is there when it is complete.
  if (spec_->memory == MemoryKind::kHost) {
    COORDD_RETURN_IF_ERROR(Wait(deadline));
    return nullptr;
  }
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  DriveIt(deadline);
  {
    MutexLock lock(&mu_);
    clock_.Await(
        &mu_, &changed_, [this] { return enqueued() || done(); }, deadline);
    if (!done() && enqueued()) return event_;
    if (!done()) return StillRunning();
  }
  COORDD_RETURN_IF_ERROR(Tell(ended()));
  return nullptr;
}

bool Work::NudgeWaiter() {
  if (waiters_.load() == 0) return false;
  {
    MutexLock lock(&mu_);
    nudged_ = true;
  }
  changed_.NotifyAll();
  return true;
}

// What is returned never changes again, so it may be read without the lock.
const WorkResult& Work::result() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  COORDD_CHECK(enqueued() || (done_.load(std::memory_order_acquire) && status_.ok()));
  return result_;
}

std::shared_ptr<std::byte[]> Work::owned_output() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const bool known = enqueued() || done_.load(std::memory_order_acquire);
  return known ? result_.owned_output : nullptr;
}

void Work::OnComplete(std::function<void(const absl::Status&)> f) {
  absl::Status status = fork_guard_.Check();
  if (status.ok()) {
    MutexLock lock(&mu_);
    if (!done()) {
      callbacks_.push_back(std::move(f));
      has_callbacks_.store(true, std::memory_order_release);
      return;
    }
    status = ended();
  }
  f(status);
}

void Work::Enqueued(std::shared_ptr<DeviceEvent> event, WorkResult result) {
  {
    MutexLock lock(&mu_);
    COORDD_CHECK(!done() && !enqueued());
    event_ = std::move(event);
    result_ = std::move(result);
    enqueued_.store(true, std::memory_order_release);
  }
  changed_.NotifyAll();
}

void Work::Complete(absl::Status status, WorkResult result) {
  for (auto& callback : CompleteAlone(status, std::move(result))) callback(status);
}

Work::Callbacks Work::CompleteAlone(const absl::Status& status, WorkResult result) {
  Callbacks callbacks;
  {
    MutexLock lock(&mu_);
    COORDD_CHECK(!done());
    status_ = status;
    // What it was said to be when it was enqueued it stays: somebody may be reading it.
    if (!enqueued()) result_ = std::move(result);
    callbacks.swap(callbacks_);
    done_.store(true, std::memory_order_release);
  }
  changed_.NotifyAll();
  return callbacks;
}

}  // namespace coordd
