// How a generation has ended, for those who do not ask the control thread.
#pragma once

#include <atomic>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace coordd {

// Thread-safe. Ends once; whoever looks at ended() in a loop pays for a load.
class GenerationEnd {
 public:
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // OK: it has not ended.
  absl::Status status() const {
    MutexLock lock(&mu_);
    return status_;
  }
  // The first one counts. REQUIRES: !status.ok().
  void Set(absl::Status status) {
    {
      MutexLock lock(&mu_);
      if (!status_.ok()) return;
      status_ = std::move(status);
      ended_.store(true, std::memory_order_release);
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
  std::atomic<bool> ended_ = false;

  // Guarded by mu_.
  mutable Mutex mu_;
  CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
