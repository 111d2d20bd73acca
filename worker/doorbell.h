// Where a thread that waits for others' memory to change sleeps, and whoever has changed it wakes
// it: a futex in memory that processes share. (io)
#pragma once

#include <atomic>
#include <cstdint>

namespace coordd {

// What waiting asks of the system; a test has its own.
struct WaitCalls {
  int64_t (*now_nanoseconds)();  // on a monotonic clock
  void (*yield)();
  void (*sleep)(int64_t nanoseconds);  // returning early is fine, also of the next one
  // Sleeps if `word` is `expected`, until somebody wakes it, in whatever process.
  void (*sleep_at)(std::atomic<uint32_t>& word, uint32_t expected, int64_t nanoseconds_max);
  // A full memory barrier of all threads that run in processes which take part
  // (TakePartInBarriers), and of the caller's. False: it cannot be had here.
  bool (*bar_all)();

  static const WaitCalls& Real();
};

// To be called once by each process that rings; whether it could. A container may forbid it.
bool TakePartInBarriers();

// One thread at a time waits at a bell, any thread of any process that has it mapped rings. All
// zero at first; fixed layout.
//
// Who rings does so on the way of every small collective, where a barrier would cost more than the
// rest: it stores what the other waits for and loads `listens`, which the processor may do in the
// other order. So whoever waits has all others pass a barrier, once, after it has said that it
// listens: then each of them either sees that, or has stored before, which a further look finds.
//
// What a process has said that was killed stays there, and is rung by others once.
struct alignas(64) Doorbell {
  std::atomic<uint32_t> listens;  // somebody sleeps, or looks once more before it does
  std::atomic<uint32_t> rung;     // the futex: since the listener's last look

  // To be called behind the store that somebody may wait for.
  void Ring() {
    // The compiler does not change the order, either.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (listens.load(std::memory_order_relaxed) != 0) RingListener();
  }

  // For who waits: Listen, then again and again a look at what it waits for, and Sleep; then
  // StopListening. Returns whether no ring of a process that takes part can be lost.
  bool Listen(const WaitCalls& calls = WaitCalls::Real());
  // Until the next ring since the last Listen or Sleep; returns whether there was one.
  bool Sleep(int64_t nanoseconds_max, const WaitCalls& calls = WaitCalls::Real());
  void StopListening() { listens.store(0, std::memory_order_relaxed); }

 private:
  void RingListener();
};
static_assert(sizeof(Doorbell) == 64 && std::atomic<uint32_t>::is_always_lock_free);

// How a thread may wait, for what it waits for.
struct BellUse {
  Doorbell* bell = nullptr;  // nullptr: it has to poll
  // All that it waits for rings the bell, from processes that take part; else it has to poll, too.
  bool suffices = false;
};

}  // namespace coordd
