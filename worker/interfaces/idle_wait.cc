#include "worker/interfaces/idle_wait.h"

#include <algorithm>

namespace coordd {
namespace {

// A poll costs some 150 ns. Spinning ends after 3 us: a peer that runs has answered by then, and
// one that waits for this very core, because the machine has other work too, gets it (spinning for
// 100 us made a small allreduce take 160 us then, instead of 16). Yielding costs little more than a
// poll where nobody wants the core; it ends after some 80 us, when a wake-up from sleep (50 us) no
// longer matters.
constexpr int32_t kSpins = 20;
constexpr int64_t kSleepNanosecondsMin = 20'000;
constexpr int32_t kSleepsPerDoubling = 16;

// Among threads that poll a yield takes microseconds; a slice of the kernel's is 3 ms or more.
constexpr int64_t kSliceNanoseconds = 1'000'000;
// One more try costs a slice: a hundredth of the longest time between two.
constexpr int64_t kCrowdedNanosecondsMin = 10'000'000;
constexpr int64_t kCrowdedNanosecondsMax = 500'000'000;

// A yield that let nobody run takes half of that.
constexpr int64_t kHandOverNanoseconds = 2'000;
constexpr int32_t kHandedOver = 4, kHandedOverMax = 16;

void PauseCpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

thread_local IdleWait::Crowd IdleWait::crowd_;

IdleWait::IdleWait(int32_t polling_threads, int32_t cores, const WaitCalls& calls)
    : spins_(polling_threads <= cores ? kSpins : 0), calls_(calls) {}

void IdleWait::Yield() {
  const int64_t before = calls_.now_nanoseconds();
  // With more threads than cores the peer needs this one: it is worth a slice.
  if (spins_ > 0 && before < crowd_.until_ns) return PauseCpu();
  calls_.yield();
  const int64_t after = calls_.now_nanoseconds();
  if (after - before < kSliceNanoseconds) {
    crowd_.for_ns = 0;
    const int32_t counted = crowd_.handed_over + (after - before < kHandOverNanoseconds ? -1 : 1);
    crowd_.handed_over = std::clamp(counted, 0, kHandedOverMax);
  } else {
    crowd_.for_ns = std::clamp(2 * crowd_.for_ns, kCrowdedNanosecondsMin, kCrowdedNanosecondsMax);
    crowd_.until_ns = after + crowd_.for_ns;
  }
}

void IdleWait::SleepAtAlarm(const BellUse& use) {
  if (alarm_ != nullptr) {
    alarm_->Sleep(use.descriptor, kBellNanosecondsMax);
    return;
  }
  // What came before that was not rung: the caller looks once more.
  alarm_ = use.alarm;
  alarm_->Listen();
}

void IdleWait::Sleep(int64_t nanoseconds, const BellUse& use) {
  const bool has_alarm = use.alarm != nullptr && use.descriptor >= 0 && use.alarm->is_usable();
  if (bell_ != use.bell || alarm_ != (has_alarm ? use.alarm : nullptr)) LeaveBell();
  if (has_alarm) return SleepAtAlarm(use);
  if (use.bell == nullptr) return calls_.sleep(nanoseconds);
  if (bell_ == nullptr) {
    // What came before that was not rung: the caller looks once more.
    bell_ = use.bell;
    bell_->Listen();
    slept_there_ = false;
    return;
  }
  if (use.suffices) nanoseconds = slept_there_ ? kBellNanosecondsMax : kFirstBellNanosecondsMax;
  bell_->Sleep(nanoseconds, calls_);
  slept_there_ = true;
}

bool IdleWait::Wait(const BellUse& use) {
  // The counter stops where it makes no difference any more.
  constexpr int32_t kDoublingsMax = 5;
  constexpr int32_t kSleepsCounted = kSleepsPerDoubling * kDoublingsMax;
  waits_ = std::min(waits_ + 1, spins_ + kYields + kSleepsCounted);
  // There are more threads that poll here than it was told of.
  if (crowd_.handed_over >= kHandedOver) waits_ = std::max(waits_, spins_ + 1);
  if (waits_ <= spins_) {
    PauseCpu();
    return false;
  }
  if (waits_ <= spins_ + kYields) {
    Yield();
    return true;
  }
  const int32_t doublings = (waits_ - spins_ - kYields) / kSleepsPerDoubling;
  Sleep(std::min(kSleepNanosecondsMin << doublings, kSleepNanosecondsMax), use);
  return true;
}

}  // namespace coordd
