// The lanes of a generation that are comms' on this rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>

#include "common/base/mutex.h"

namespace coordd {

// Thread-safe. Members of a comm take the largest number that any of them proposes; when another
// comm has got it on one of them meanwhile, they try again. A number is never used twice.
class CommNumbers {
 public:
  // A number that is larger than all that were proposed or taken here.
  int32_t Propose() {
    MutexLock lock(&mu_);
    return next_++;
  }
  // Whether it was free.
  bool Take(int32_t number) {
    MutexLock lock(&mu_);
    next_ = std::max(next_, number + 1);
    return taken_.insert(number).second;
  }

 private:
  // Guarded by mu_.
  Mutex mu_;
  int32_t next_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<int32_t> taken_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
