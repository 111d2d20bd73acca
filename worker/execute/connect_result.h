// Whether a data plane has connected, for the thread that waits for it.
#pragma once

#include "absl/status/status.h"
#include "common/base/mutex.h"

namespace coordd {

// Thread-safe. Is set once.
class ConnectResult {
 public:
  void Set(const absl::Status& status) {
    MutexLock lock(&mu_);
    status_ = status;
    is_set_ = true;
    changed_.NotifyAll();
  }
  // Waits until it is set.
  absl::Status Await() {
    MutexLock lock(&mu_);
    while (!is_set_) changed_.Wait(&mu_);
    return status_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool is_set_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
