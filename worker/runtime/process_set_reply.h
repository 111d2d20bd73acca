// The answer to one call for a process set.
#pragma once

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/protocol/types.h"

namespace coordd {

// Thread-safe. The control thread delivers once, always; one caller waits. The call's deadline is
// kept by WorkerState.
class ProcessSetReply {
 public:
  void Deliver(absl::StatusOr<ProcessSetId> answer) {
    MutexLock lock(&mu_);
    answer_ = std::move(answer);
    // Under the lock: the waiting caller may end this object as soon as it has the answer.
    delivered_.NotifyAll();
  }

  absl::StatusOr<ProcessSetId> Await() {
    MutexLock lock(&mu_);
    while (!answer_.has_value()) delivered_.Wait(&mu_);
    return *answer_;
  }

 private:
  // Guarded by mu_.
  Mutex mu_;
  CondVar delivered_;
  std::optional<absl::StatusOr<ProcessSetId>> answer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
