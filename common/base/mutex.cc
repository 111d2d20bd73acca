#include "common/base/mutex.h"

#include <algorithm>
#include <chrono>

namespace coordd {

void CondVar::Wait(Mutex* mu) {
  std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
  cv_.wait(lock);
  lock.release();
}

bool CondVar::WaitFor(Mutex* mu, absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) {
    Wait(mu);
    return true;
  }
  std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
  const auto bounded = std::min(timeout, absl::Hours(24 * 365));  // chrono overflows beyond
  const std::cv_status status =
      cv_.wait_until(lock, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(bounded));
  lock.release();
  return status == std::cv_status::no_timeout;
}

}  // namespace coordd
