// Time that moves when a test says so.
#pragma once

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace coordd {

// Thread-safe. Threads that wait on it wake when it is advanced past their deadline.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time now = absl::FromUnixSeconds(1'000'000)) : now_(now) {}

  absl::Time Now() override {
    MutexLock lock(&mu_);
    return now_;
  }

  // Looks at the time again every millisecond: waking the waiters of every queue would need their
  // condition variables.
  bool Await(Mutex* mu, CondVar* cv, absl::FunctionRef<bool()> condition,
             absl::Time deadline) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    while (!condition()) {
      if (Now() >= deadline) return false;
      cv->WaitFor(mu, absl::Milliseconds(1));
    }
    return true;
  }

  void Advance(absl::Duration by) {
    MutexLock lock(&mu_);
    now_ += by;
  }

 private:
  Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
