#include "worker/idle_wait.h"

#include <sched.h>
#include <time.h>

#include <algorithm>

namespace coordd {
namespace {

// A poll costs some 150 ns. Spinning ends after 3 us: a peer that runs has answered by then, and
// one that waits for this very core, because the machine has other work too, gets it (spinning for
// 100 us made a small allreduce take 160 us then, instead of 16). Yielding costs little more than a
// poll where nobody wants the core; it ends after some 80 us, when a wake-up from sleep (50 us) no
// longer matters.
constexpr int32_t kSpins = 20;
constexpr int32_t kYields = 200;
constexpr int64_t kSleepNanosecondsMin = 20'000;
constexpr int32_t kSleepsPerDoubling = 16;

void PauseCpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void SleepNanoseconds(int64_t nanoseconds) {
  timespec duration{0, nanoseconds};
  nanosleep(&duration, nullptr);  // returning early is fine
}

}  // namespace

IdleWait::IdleWait(int32_t polling_threads, int32_t cores)
    : spins_(polling_threads <= cores ? kSpins : 0) {}

bool IdleWait::Wait() {
  // The counter stops where it makes no difference any more.
  constexpr int32_t kDoublingsMax = 5;
  constexpr int32_t kSleepsCounted = kSleepsPerDoubling * kDoublingsMax;
  waits_ = std::min(waits_ + 1, spins_ + kYields + kSleepsCounted);
  if (waits_ <= spins_) {
    PauseCpu();
    return false;
  }
  if (waits_ <= spins_ + kYields) {
    sched_yield();
    return true;
  }
  const int32_t doublings = (waits_ - spins_ - kYields) / kSleepsPerDoubling;
  SleepNanoseconds(std::min(kSleepNanosecondsMin << doublings, kSleepNanosecondsMax));
  return true;
}

}  // namespace coordd
