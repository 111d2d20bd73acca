#include "worker/runtime/plane_end.h"

#include <utility>

#include "absl/time/time.h"
#include "common/base/thread.h"

namespace coordd {

PlaneEnd::PlaneEnd(Clock& clock) : queue_(1, clock) {}  // it is bounded by the generations

PlaneEnd::~PlaneEnd() {
  queue_.Close();
  MutexLock lock(&mu_);
  if (thread_.joinable()) thread_.join();
}

void PlaneEnd::Take(std::shared_ptr<const void> over) {
  {
    MutexLock lock(&mu_);
    if (!thread_.joinable()) {
      thread_ = StartThread("plane-end", [this] {
        while (!queue_.Finished()) queue_.TakeAll(absl::InfiniteFuture());
      });
    }
  }
  queue_.PushUnbounded(std::move(over));
}

}  // namespace coordd
