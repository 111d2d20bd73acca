// Who drives the data plane: one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace coordd {

class Work;

// Thread-safe. Whoever sits in the seat owns the backend, the lanes and what is in flight. As a
// rule that is the executor's thread, which sleeps while there is nothing to do. A thread that
// waits for a tensor of its own takes a free seat and does the work itself: waking another thread
// and being woken by it takes longer than a small collective.
//
// Nothing that was put there for the driver (in the executor's queue, followed by Call) is
// forgotten: the driver looks (TakeCall) before it leaves, and a call that came after its last look
// wakes the executor's thread.
//
// Works refer to it, and may be waited for when their worker is gone; so it is shared. When the
// executor ends, its thread keeps the seat for ever.
class ABSL_LOCKABLE DriverSeat {
 public:
  // Drives on behalf of a thread that waits for the work, in the seat, which it leaves: when the
  // work is done, when there is nothing more to do for it here, or at the deadline.
  using Drive = std::function<void(const Work&, absl::Time deadline)>;

  // Taken at first, for the executor's thread. `drive` is called in the seat only.
  explicit DriverSeat(Drive drive) : drive_(std::move(drive)) {}

  // There is something to do. Whoever sits sees it by itself. When the seat is free, the executor's
  // thread is woken, unless `waiter_comes`: a thread that waits for a Work is about to TryTake, or
  // to Decline.
  void Call(bool waiter_comes = false);

  // For a thread that waits: whether the seat was free and there was something to do.
  bool TryTake() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true);
  // For a thread that brings something to do itself: whether the seat was free.
  bool TryTakeFree() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true);
  void DriveFor(const Work& work, absl::Time deadline) ABSL_UNLOCK_FUNCTION();
  // A thread that was counted on stops waiting.
  void Decline();

  // For the executor's thread. Await blocks until there is something to do and the seat is free.
  void AdoptAtStart() ABSL_EXCLUSIVE_LOCK_FUNCTION() {}
  void Await() ABSL_EXCLUSIVE_LOCK_FUNCTION();
  // The thread ends; nobody gets the seat any more.
  void KeepForEver() ABSL_UNLOCK_FUNCTION() {}

  // In the seat, instead of Leave: what is left to do is a message's, and whoever has sent or
  // receives it is about to wait for it, as a rule. The executor's thread is not woken; it looks
  // whether somebody has come a little later, and takes the seat if not.
  void LeaveToWaiter() ABSL_UNLOCK_FUNCTION();

  // In the seat: whether there is a call to be taken.
  bool is_called() const { return called_.load(std::memory_order_relaxed); }
  // In the seat: whether there was a call since the last look.
  bool TakeCall() { return called_.load(std::memory_order_relaxed) && called_.exchange(false); }
  // `more`: something is left to do, for the executor's thread.
  void Leave(bool more) ABSL_UNLOCK_FUNCTION();
  // Whether somebody sits there now.
  bool taken() const {
    MutexLock lock(&mu_);
    return taken_;
  }
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

 private:
  // Constant after construction.
  const Drive drive_;

  // Thread-safe by itself: set under mu_, so that a driver that leaves sees it.
  std::atomic<bool> called_ = false;

  // Guarded by mu_.
  mutable Mutex mu_;
  CondVar changed_;  // the executor's thread waits for it
  bool taken_ ABSL_GUARDED_BY(mu_) = true;
  // What a driver has left: the executor's thread, which is being woken for it, comes first. A
  // caller that waits for one tensor after the other would come before it each time.
  bool left_for_thread_ ABSL_GUARDED_BY(mu_) = false;
  bool left_to_waiter_ ABSL_GUARDED_BY(mu_) = false;  // nobody has come yet
  int64_t times_left_to_waiter_ ABSL_GUARDED_BY(mu_) = 0;
  bool thread_looks_ ABSL_GUARDED_BY(mu_) = false;  // the executor's thread does not sleep for long
};

}  // namespace coordd
