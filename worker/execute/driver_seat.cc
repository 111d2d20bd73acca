#include "worker/execute/driver_seat.h"

namespace coordd {

void DriverSeat::Call(bool waiter_comes) {
  {
    MutexLock lock(&mu_);
    called_.store(true);
    if (taken_ || waiter_comes) return;
  }
  changed_.NotifyOne();
}

bool DriverSeat::TryTake() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MutexLock lock(&mu_);
  if (taken_ || left_for_thread_ || !called_.load()) return false;
  taken_ = true;
  return true;
}

void DriverSeat::DriveFor(const Work& work, absl::Time deadline) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  drive_(work, deadline);
}

void DriverSeat::Decline() {
  {
    MutexLock lock(&mu_);
    if (taken_ || !called_.load()) return;
  }
  changed_.NotifyOne();
}

void DriverSeat::Await() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MutexLock lock(&mu_);
  while (taken_ || !called_.load()) changed_.Wait(&mu_);
  taken_ = true;
  left_for_thread_ = false;
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
