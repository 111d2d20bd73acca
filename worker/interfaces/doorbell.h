// Where a thread that waits for others' memory to change sleeps, and whoever has changed it wakes
// it: a futex in memory that processes share. (io)
#pragma once

#include <atomic>
#include <cstdint>

namespace coordd {

class Alarm;

// What waiting asks of the system; a test has its own.
struct WaitCalls {
  int64_t (*now_nanoseconds)();  // on a monotonic clock
  void (*yield)();
  void (*sleep)(int64_t nanoseconds);  // returning early is fine, also of the next one
  // Sleeps if `word` is `expected`, until somebody wakes it, in whatever process; returns whether
  // that was before the time was over. Returning early is fine, too.
  bool (*sleep_at)(std::atomic<uint32_t>& word, uint32_t expected, int64_t nanoseconds_max);

  static const WaitCalls& Real();
};

// One thread at a time waits at a bell, any thread of any process that has it mapped rings. All
// zero at first; fixed layout.
//
// Who rings does so on the way of every small collective, where a memory barrier would cost as much
// as the rest: it stores what the other waits for and loads `listens`, and the load may come before
// the store has left the core. So a ring can be lost to a listener that has begun to listen in that
// very moment, and whose look behind that came too early as well. What it has missed is there a
// microsecond later, and all that is stored after that is rung: so the first sleep is to be a short
// one, and no later one misses anything. (membarrier(2) would spare that by interrupting the cores
// of all others for each thread that goes to sleep: those that are late pay for those that wait.)
//
// What a process has said that was killed stays there and harms nobody.
struct alignas(64) Doorbell {
  std::atomic<uint32_t> listens;  // somebody sleeps, or looks once more before it does
  std::atomic<uint32_t> rung;     // the futex: since the listener's last look

  // Rings. To be called behind the store that somebody may wait for.
  void Ring() {
    // The compiler does not change the order, either.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (listens.load(std::memory_order_relaxed) != 0) RingListener();
  }

  // A waiter calls Listen, looks at what it waits for, sleeps shortly and looks; then again and
  // again it calls Sleep and looks; then StopListening.
  void Listen();
  // Sleeps until there is a ring since the last Listen or Sleep, or earlier; returns whether that
  // was before the time was over.
  bool Sleep(int64_t nanoseconds_max, const WaitCalls& calls = WaitCalls::Real());
  void StopListening() { listens.store(0, std::memory_order_relaxed); }

 private:
  void RingListener();
};
static_assert(sizeof(Doorbell) == 64 && std::atomic<uint32_t>::is_always_lock_free);

// How a thread may wait, for what it waits for.
struct BellUse {
  Doorbell* bell = nullptr;  // nullptr: it has to poll
  // Whether all that the thread waits for rings the bell; else it has to poll, too.
  bool suffices = false;
  // Instead of a bell, where all that the thread waits for comes from its own process, which rings
  // the alarm, or can be read at a descriptor; -1: there is none.
  int descriptor = -1;
  Alarm* alarm = nullptr;
};

}  // namespace coordd
