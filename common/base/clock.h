// Time as a seam. Pure classes take `absl::Time now`; only the shell holds a Clock.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace coordd {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // The process's clock: starts at the wall clock's time and then runs on the monotonic one, so
  // that it never jumps when somebody sets the date. For leases and deadlines, not for timestamps
  // that people compare between machines.
  static Clock& Real();

  virtual absl::Time Now() = 0;

  // Waits on `cv` until `condition` holds or `deadline` passes; returns whether it holds.
  virtual bool Await(Mutex* mu, CondVar* cv, absl::FunctionRef<bool()> condition,
                     absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) = 0;
};

}  // namespace coordd
