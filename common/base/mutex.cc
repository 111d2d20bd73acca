#include "common/base/mutex.h"

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace coordd {

CondVar::CondVar() {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&cv_, &attributes);
  pthread_condattr_destroy(&attributes);
}

void CondVar::Wait(Mutex* mu) { pthread_cond_wait(&cv_, mu->mu_.native_handle()); }

bool CondVar::WaitFor(Mutex* mu, absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) {
    Wait(mu);
    return true;
  }
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  // A year at most: the seconds of a time would overflow beyond.
  const absl::Duration bounded = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24 * 365));
  const timespec until = absl::ToTimespec(absl::DurationFromTimespec(now) + bounded);
  return pthread_cond_timedwait(&cv_, mu->mu_.native_handle(), &until) != ETIMEDOUT;
}

}  // namespace coordd
