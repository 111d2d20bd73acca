#include "worker/interfaces/doorbell.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

namespace coordd {
namespace {

constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;

timespec TimeOf(int64_t nanoseconds) {
  return {nanoseconds / kNanosecondsPerSecond, nanoseconds % kNanosecondsPerSecond};
}

int64_t NowNanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNanosecondsPerSecond + now.tv_nsec;
}

void SleepNanoseconds(int64_t nanoseconds) {
  const timespec duration = TimeOf(nanoseconds);
  nanosleep(&duration, nullptr);
}

// Not FUTEX_PRIVATE_FLAG: the word has another address in each process.
bool SleepAt(std::atomic<uint32_t>& word, uint32_t expected, int64_t nanoseconds_max) {
  const timespec duration = TimeOf(nanoseconds_max);
  return syscall(SYS_futex, &word, FUTEX_WAIT, expected, &duration, nullptr, 0) == 0 ||
         errno != ETIMEDOUT;
}

}  // namespace

const WaitCalls& WaitCalls::Real() {
  static constexpr WaitCalls kReal = {&NowNanoseconds, [] { sched_yield(); }, &SleepNanoseconds,
                                      &SleepAt};
  return kReal;
}

void Doorbell::Listen() {
  rung.store(0, std::memory_order_relaxed);
  // No look of the caller's comes before it.
  listens.exchange(1, std::memory_order_seq_cst);
}

// A ring before the exchange here is seen by it, and what was stored before that ring by the look
// that follows; a later one finds 0, and wakes.
bool Doorbell::Sleep(int64_t nanoseconds_max, const WaitCalls& calls) {
  const bool in_time =
      rung.load(std::memory_order_relaxed) != 0 || calls.sleep_at(rung, 0, nanoseconds_max);
  return rung.exchange(0, std::memory_order_acq_rel) != 0 || in_time;
}

// Who has been rung and has not looked yet need not be woken twice: the kernel is called once for
// each sleep. Whoever is stopped between the two leaves the listener asleep until it goes on, or
// the listener's time is over.
void Doorbell::RingListener() {
  if (rung.exchange(1, std::memory_order_acq_rel) != 0) return;
  syscall(SYS_futex, &rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace coordd
