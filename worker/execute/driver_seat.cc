#include "worker/execute/driver_seat.h"

#include <utility>

namespace coordd {
namespace {

// How long whoever has begun a message may take until it waits for it: much longer than a program
// needs for that, and than the executor's thread needs to look.
constexpr absl::Duration kUntilWaiterComes = absl::Milliseconds(1);
// After so many looks in vain the executor's thread sleeps until it is woken.
constexpr int kLooksMax = 20;

}  // namespace

void DriverSeat::Call(bool waiter_comes) {
  {
    MutexLock lock(&mu_);
    called_.store(true);
    if (taken_ || waiter_comes) return;
    left_to_waiter_ = false;
  }
  changed_.NotifyOne();
}

bool DriverSeat::TryTake() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MutexLock lock(&mu_);
  if (taken_ || left_for_thread_ || !called_.load()) return false;
  taken_ = true;
  left_to_waiter_ = false;
  return true;
}

bool DriverSeat::TryTakeFree() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MutexLock lock(&mu_);
  if (taken_ || left_for_thread_) return false;
  taken_ = true;
  left_to_waiter_ = false;
  return true;
}

void DriverSeat::DriveFor(const Work& work, absl::Time deadline) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  drive_(work, deadline);
}

void DriverSeat::Decline() {
  {
    MutexLock lock(&mu_);
    if (taken_ || !called_.load()) return;
    left_to_waiter_ = false;
  }
  changed_.NotifyOne();
}

void DriverSeat::Await() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MutexLock lock(&mu_);
  int in_vain = 0;
  while (taken_ || !called_.load() || left_to_waiter_) {
    if (!thread_looks_) {
      changed_.Wait(&mu_);
      continue;
    }
    const int64_t times = times_left_to_waiter_;
    if (changed_.WaitFor(&mu_, kUntilWaiterComes)) continue;
    if (times != times_left_to_waiter_) {  // they come
      in_vain = 0;
    } else if (left_to_waiter_) {
      break;
    } else if (++in_vain == kLooksMax) {
      thread_looks_ = false;
    }
  }
  taken_ = true;
  left_for_thread_ = left_to_waiter_ = false;
}

void DriverSeat::LeaveToWaiter() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  {
    MutexLock lock(&mu_);
    taken_ = false;
    called_.store(true);
    left_to_waiter_ = true;
    ++times_left_to_waiter_;
    if (std::exchange(thread_looks_, true)) return;
  }
  changed_.NotifyOne();
}

void DriverSeat::Leave(bool more) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  {
    MutexLock lock(&mu_);
    taken_ = false;
    if (more) called_.store(true);
    if (!called_.load()) return;
    left_for_thread_ = true;
  }
  changed_.NotifyOne();
}

}  // namespace coordd
