// A wait for nothing but the time.
#pragma once

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace coordd {

// Blocks the calling thread until `end`, as `clock` has it. Any thread may call it.
inline void WaitUntil(Clock& clock, absl::Time end) {
  Mutex mu;
  CondVar never;  // nobody signals
  MutexLock lock(&mu);
  clock.Await(
      &mu, &never, [] { return false; }, end);
}

}  // namespace coordd
