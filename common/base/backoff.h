// Exponential back-off with full jitter (Brooker, "Exponential Backoff And Jitter", AWS
// Architecture Blog, 2015).
#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "common/base/random.h"

namespace coordd {

struct BackoffOptions {
  absl::Duration initial = absl::Milliseconds(50);
  absl::Duration max = absl::Seconds(2);
};

// Not thread-safe.
class Backoff {
 public:
  Backoff(const BackoffOptions& options, Random& random)
      : options_(options), random_(random), ceiling_(options.initial) {}

  // How long to wait before the next try: uniform in (ceiling/2, ceiling], the ceiling doubling up
  // to max.
  absl::Duration Next() {
    const absl::Duration delay = ceiling_ * (0.5 + 0.5 * random_.Uniform());
    ceiling_ = std::min(ceiling_ * 2, options_.max);
    return delay;
  }
  void Reset() { ceiling_ = options_.initial; }

 private:
  const BackoffOptions options_;
  Random& random_;
  absl::Duration ceiling_;
};

}  // namespace coordd
