// The order of a comm: its calls run one after the other, as they were made.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "worker/api/comm.h"
#include "worker/base/fork_guard.h"
#include "worker/base/shared_spec.h"
#include "worker/execute/work.h"
#include "worker/runtime/comm_execution.h"

namespace coordd {

// Thread-safe, but that one thread at a time makes calls (FAILED_PRECONDITION); Works refer to it.
//
// A call for which its thread waits runs on that thread, if nothing is before it. What was started
// lies in a queue, of which the thread "comm", which the first such call begins, executes one after
// the other. Whoever waits for a work (Work::Wait) does so itself if nobody is at it: waking a
// thread takes longer than a small collective. One thread at a time executes.
//
// A callback of a work runs on the thread that has executed it, and may make calls and wait for
// them, also by means that this file does not know of. So there is always a thread "comm" that is
// in no callback where somebody may need it: as many as callbacks were under way at a time, and
// one.
class CommOrder : public std::enable_shared_from_this<CommOrder> {
 public:
  explicit CommOrder(CommExecution::Needs parts) : execution_(std::move(parts)) {}
  CommOrder(const CommOrder&) = delete;
  CommOrder& operator=(const CommOrder&) = delete;

  const CommExecution& execution() const { return execution_; }

  // As Comm says.
  absl::Status Run(const CommCall& call);
  absl::StatusOr<std::shared_ptr<Work>> RunFor(const CommCall& call, absl::Duration most);
  absl::StatusOr<std::shared_ptr<Work>> Start(const CommCall& call);

  // Ends what has not begun with CANCELLED, waits for what has, joins the threads. Once, not from a
  // callback; behind it no call may be made.
  void End();

 private:
  struct Started {
    CommCall call;
    std::shared_ptr<Work> work;
  };
  // Who executes.
  enum class Who : uint8_t { kWaiter, kThread };

  // Whether the caller makes a call now: until it is put back to false. FAILED_PRECONDITION.
  absl::Status Enter();
  void Leave() { in_call_.store(false, std::memory_order_release); }
  std::shared_ptr<Work> NewWork(const CommCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Puts a call behind the others. RESOURCE_EXHAUSTED. Without `calls_thread` the caller is about
  // to wait for it.
  absl::StatusOr<std::shared_ptr<Work>> Queue(const CommCall& call, bool calls_thread);
  // In front of them, one that has begun.
  std::shared_ptr<Work> QueueBegun(const CommCall& call);
  // For whoever waits: executes until the work is done, somebody else executes, or the deadline.
  void Drive(const Work& work, absl::Time deadline);
  void Loop();
  // REQUIRES: taken_, by the caller, and that there is a call. Executes the first one, for so long
  // at most; returns whether it has ended. Behind it, nobody has taken it.
  bool ExecuteFirst(absl::Duration most, Who who);
  void CallBack(const Work::Callbacks& callbacks, const absl::Status& status, Who who);
  // Nobody executes any more: a thread is to, if there is something.
  void HandOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  WorkResult ResultOf(const CommCall& call) const;

  // Constant after construction.
  const ForkGuard fork_guard_;

  // Touched by whoever has taken it, or makes a call while nothing is queued.
  CommExecution execution_;
  bool begun_ = false;  // the first of the queue

  // Thread-safe by themselves.
  std::atomic<bool> in_call_ = false;
  std::atomic<int32_t> open_ = 0;  // in the queue, or being executed out of it; changes under mu_

  // Guarded by mu_.
  Mutex mu_;
  CondVar changed_;
  std::deque<Started> calls_ ABSL_GUARDED_BY(mu_);  // the first one stays until it has ended
  bool taken_ ABSL_GUARDED_BY(mu_) = false;         // somebody executes
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  int32_t free_ ABSL_GUARDED_BY(mu_) = 0;  // threads that are in no callback
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
  std::array<std::optional<SharedSpec>, 32> specs_
      ABSL_GUARDED_BY(mu_);  // by kind, if there was one
};

}  // namespace coordd
