// Where a thread sleeps that waits for a descriptor of the system's, and other threads of the
// process wake it. (io)
#pragma once

#include <atomic>
#include <cstdint>

#include "common/base/owned_fd.h"

namespace coordd {

// What a Doorbell (doorbell.h) is where all that a thread waits for is a network's, or comes from
// its own process. One thread at a time waits at it, any thread rings. No ring is lost, however
// close to a Listen.
class Alarm {
 public:
  // Where the system has no descriptor left, it cannot be used.
  Alarm();

  bool is_usable() const { return event_.valid(); }

  // Rings. To be called behind the store that the other may wait for.
  void Ring() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (listens_.load(std::memory_order_relaxed)) RingListener();
  }

  // A waiter calls Listen and looks at what it waits for; then again and again it calls Sleep and
  // looks; then StopListening. REQUIRES: is_usable().
  void Listen();
  // Sleeps until the descriptor can be read, or there is a ring since the last Listen or Sleep, or
  // earlier; returns whether that was before the time was over.
  bool Sleep(int descriptor, int64_t nanoseconds_max);
  void StopListening() { listens_.store(false, std::memory_order_relaxed); }
  // Whether somebody sleeps there, or looks once more before it does.
  bool is_listened_at() const { return listens_.load(std::memory_order_relaxed); }

 private:
  void RingListener();

  // Constant after construction.
  const OwnedFd event_;

  // Thread-safe by itself.
  std::atomic<bool> listens_ = false;
  std::atomic<bool> rung_ = false;  // since the last look: the event is written once for that
};

}  // namespace coordd
