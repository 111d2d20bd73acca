// The future of one submitted tensor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/types.h"
#include "worker/base/fork_guard.h"
#include "worker/base/shared_spec.h"
#include "worker/execute/driver_seat.h"

namespace coordd {

class DeviceEvent;  // worker/gpu/cuda/device_handles.h

// What a completed Work holds besides its status.
struct WorkResult {
  Generation generation;  // to which the result belongs
  int32_t size = 0;       // members of it: what an average was divided by
  // Where the caller gave no output buffer (allgather, alltoall, reducescatter): the result,
  // 64-byte aligned.
  std::shared_ptr<std::byte[]> owned_output;
  int64_t output_bytes = 0;
  std::vector<int64_t> output_shape;
  std::vector<int64_t> received_splits;  // alltoall: rows received from each rank
};

// Thread-safe. Completes exactly once, before its deadline: with a result or with an error whose
// message names tensor, generation and, where one is to blame, rank and host. Codes:
// INVALID_ARGUMENT ranks disagree about the tensor; ABORTED the generation ended (a member was lost
// or left); DEADLINE_EXCEEDED who was missing; CANCELLED withdrawn or shut down; UNAVAILABLE coordd
// is gone; INTERNAL.
class Work {
 public:
  // With a `seat`, whoever waits drives the data plane if nobody else does.
  Work(SharedSpec spec, Clock& clock, std::shared_ptr<DriverSeat> seat = nullptr)
      : spec_(std::move(spec)), clock_(clock), seat_(std::move(seat)) {}

  const TensorSpec& spec() const { return *spec_; }
  const SharedSpec& shared_spec() const { return spec_; }

  // Waits until it is complete or `deadline` passes (a launch of its own thread, for a tensor on a
  // device, is not cut short). Returns its status, or DEADLINE_EXCEEDED when
  // it is still running (it then goes on, and its buffers stay in use), or FAILED_PRECONDITION in
  // a forked child.
  absl::Status Wait(absl::Time deadline);
  // For tensors on a device: waits until the collective is on the device (it may still wait there
  // for its input, and for other ranks), or complete. The event is that behind which the result is
  // there for every stream that waits for it; nullptr: it is there already. Statuses: as Wait.
  absl::StatusOr<std::shared_ptr<DeviceEvent>> AwaitEnqueued(absl::Time deadline);
  // In a forked child nothing completes any more.
  bool done() const { return done_.load(std::memory_order_acquire) && !fork_guard_.InChild(); }

  // While it exists, a thread waits for the work, or is about to: it can be counted on to take the
  // driver's seat.
  class Waiter {
   public:
    explicit Waiter(Work& work) : work_(work) { work_.waiters_.fetch_add(1); }
    ~Waiter();
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

   private:
    Work& work_;
  };
  // In a forked child nothing completes any more; see ForkGuard.
  bool in_forked_child() const { return fork_guard_.InChild(); }

  // REQUIRES: done() and an OK status, or an event of AwaitEnqueued.
  const WorkResult& result() const;

  // That of the result, once it is known; nullptr: not yet, or the caller's own, or there is none.
  std::shared_ptr<std::byte[]> owned_output() const;

  // Calls `f(status)` when complete: on a thread of the runtime, or at once on this thread when it
  // already is. `f` must not block and must not wait for another Work.
  void OnComplete(std::function<void(const absl::Status&)> f);

  // Whether somebody else's code runs when it completes.
  bool has_callbacks() const { return has_callbacks_.load(std::memory_order_acquire); }

  // The runtime's side. If a thread waits, tells it that the seat may be free and there is
  // something to do; returns whether one does.
  bool NudgeWaiter();
  bool has_waiter() const { return waiters_.load() > 0; }
  // In which whoever waits would sit.
  const DriverSeat* seat() const { return seat_.get(); }
  // Once.
  void Complete(absl::Status status, WorkResult result);
  // The same, and leaves it to the caller to call what is returned, with the status.
  using Callbacks = std::vector<std::function<void(const absl::Status&)>>;
  Callbacks CompleteAlone(const absl::Status& status, WorkResult result);
  // Before Complete, at most once: its name is free, and nothing is left for the host to do.
  void Enqueued(std::shared_ptr<DeviceEvent> event, WorkResult result);
  bool enqueued() const { return enqueued_.load(std::memory_order_acquire); }
  // Before anybody else knows of it: called whenever the program has been told of its failure.
  void CallWhenTold(std::function<void()> told) { told_ = std::move(told); }
  // The same: whoever waits for it calls this first, which does what there is to do for it, and
  // returns when it is complete (on a device: enqueued), or somebody else is at it, or there is
  // nothing to do yet, or at the deadline.
  using Drive = std::function<void(const Work&, absl::Time deadline)>;
  void DriveBy(Drive drive) { drive_ = std::move(drive); }

 private:
  absl::Status StillRunning() const;
  // REQUIRES: done(), after which it never changes: read without the lock.
  const absl::Status& ended() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return status_; }
  // Does what DriveBy says; on a device lets who is at it come to the end of it.
  void DriveIt(absl::Time deadline) const;
  // What it has ended with, to the program.
  absl::Status Tell(absl::Status ended) const;

  // Constant after construction.
  const SharedSpec spec_;
  Clock& clock_;
  const std::shared_ptr<DriverSeat> seat_;  // nullptr: none
  const ForkGuard fork_guard_;
  std::function<void()> told_;
  Drive drive_;

  // Thread-safe by themselves.
  std::atomic<bool> done_ = false;           // set under mu_, and nothing changes after it
  std::atomic<bool> enqueued_ = false;       // set under mu_
  std::atomic<bool> has_callbacks_ = false;  // set under mu_
  std::atomic<int32_t> waiters_ = 0;

  // Guarded by mu_.
  mutable Mutex mu_;
  CondVar changed_;
  bool nudged_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  WorkResult result_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<DeviceEvent> event_ ABSL_GUARDED_BY(mu_);  // once enqueued
  Callbacks callbacks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
