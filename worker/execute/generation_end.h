// How a generation has ended, for those who do not ask the control thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/execute/worker_errors.h"

namespace coordd {

// Thread-safe. Ends once; whoever looks at ended() in a loop pays for a load.
class GenerationEnd {
 public:
  bool ended() const { return phase_.load(std::memory_order_acquire) != Phase::kLives; }
  // Ended, and not by goodbyes alone: what has been called ends, too.
  bool aborts() const { return phase_.load(std::memory_order_acquire) == Phase::kAborts; }
  // OK: it has not ended.
  absl::Status status() const {
    MutexLock lock(&mu_);
    return status_;
  }
  // The first one counts; behind goodbyes (IsByGoodbyes) the first that is something else.
  // REQUIRES: !status.ok().
  void Set(absl::Status status) {
    {
      MutexLock lock(&mu_);
      const Phase phase = IsByGoodbyes(status) ? Phase::kLetsFinish : Phase::kAborts;
      if (phase <= phase_.load(std::memory_order_relaxed)) return;
      status_ = std::move(status);
      phase_.store(phase, std::memory_order_release);
    }
    changed_.NotifyAll();
  }
  // status(), once it has ended or at the deadline.
  absl::Status Await(Clock& clock, absl::Time deadline) {
    MutexLock lock(&mu_);
    clock.Await(
        &mu_, &changed_, [this] { return ended(); }, deadline);
    return status_;
  }

 private:
  enum class Phase : uint8_t { kLives, kLetsFinish, kAborts };

  std::atomic<Phase> phase_ = Phase::kLives;  // set under mu_

  // Guarded by mu_.
  mutable Mutex mu_;
  CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
