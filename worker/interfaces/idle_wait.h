// How a thread that polls waits between two polls that found nothing.
#pragma once

#include <cstdint>

#include "worker/interfaces/alarm.h"
#include "worker/interfaces/doorbell.h"

namespace coordd {

// One thread. First spins (what it waits for is usually a microsecond away), then yields (the peer
// may need this very core), then sleeps, longer each time up to kSleepNanosecondsMax. This is the
// one place of the worker that sleeps: a Transport over shared memory has nothing to block on.
//
// With a bell (doorbell.h) it sleeps until that rings, or as long as it would without. If all that
// it waits for rings the bell, that is, after one short sleep (Doorbell::Listen),
// kBellNanosecondsMax at a time: so often it looks at what does not, such as the end of a peer.
//
// With an alarm (alarm.h) and a descriptor, which suffice always, it is the same; no ring of an
// alarm is lost, so that there is no short sleep before.
//
// Where somebody computes on this core, such as a data loader, who yields gets it back when the
// other's time slice is over, milliseconds later; who sleeps gets it as soon as it wakes. So a
// thread that a yield has cost a slice spins a little longer and then sleeps instead, for a while,
// and for longer each time it finds that out again. (Not with more threads than cores: the peer
// needs the core then.)
//
// Where more threads poll than it was told of, as on one machine with several nodes (containers), a
// yield lets one of them run: who notices that yields without spinning first.
class IdleWait {
 public:
  // Wake-ups of a rank that waits long for a message: 2,000 a second, some 2 % of a core.
  static constexpr int64_t kSleepNanosecondsMax = 500'000;
  // Wake-ups at a bell that suffices: 100 a second.
  static constexpr int64_t kBellNanosecondsMax = 10'000'000;
  static constexpr int64_t kFirstBellNanosecondsMax = 100'000;

  // `polling_threads` of this machine are expected to poll at the same time (the ranks of the node)
  // on `cores`; with more threads than cores spinning only keeps the peer from running, so it is
  // left out. `calls` outlive it.
  IdleWait(int32_t polling_threads, int32_t cores, const WaitCalls& calls = WaitCalls::Real());
  ~IdleWait() { LeaveBell(); }
  IdleWait(const IdleWait&) = delete;
  IdleWait& operator=(const IdleWait&) = delete;

  // Begins anew, since something happened.
  void Reset() {
    waits_ = 0;
    LeaveBell();
  }
  // Waits, since nothing happened. Returns whether the thread gave up its core for a while: beside
  // that, reading the clock costs nothing. The bell is at the caller's until the next Reset, or
  // Wait without it.
  bool Wait(const BellUse& use = {});
  // Whether the next Wait would sleep: before that nobody needs to know at which bell.
  bool sleeps_next() const { return waits_ >= spins_ + kYields; }

 private:
  static constexpr int32_t kYields = 200;

  // Constant after construction.
  const int32_t spins_;
  const WaitCalls& calls_;

  // Touched by the owner's thread.
  int32_t waits_ = 0;         // since the last Reset
  Doorbell* bell_ = nullptr;  // at which it listens; nullptr: at none
  Alarm* alarm_ = nullptr;    // the same
  bool slept_there_ = false;  // since it does

  // What each thread remembers of its yields, whatever it waits for.
  struct Crowd {
    int64_t until_ns = 0;     // on the monotonic clock: no yielding before
    int64_t for_ns = 0;       // how long it was the last time; 0: the last yield was short
    int32_t handed_over = 0;  // of the last yields, how many have let somebody run who polls, too
  };
  static thread_local Crowd crowd_;

  void Yield();
  void Sleep(int64_t nanoseconds, const BellUse& use);
  void SleepAtAlarm(const BellUse& use);
  void LeaveBell() {
    if (bell_ != nullptr) bell_->StopListening();
    if (alarm_ != nullptr) alarm_->StopListening();
    bell_ = nullptr;
    alarm_ = nullptr;
  }
};

}  // namespace coordd
