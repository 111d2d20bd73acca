// Notices what NCCL does not tell, and ends communicators without making anybody wait for it. (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "worker/nccl/nccl_communicator.h"
#include "worker/nccl/nccl_gate.h"

namespace coordd {

struct NcclWatchdogOptions {
  absl::Duration poll_interval = absl::Milliseconds(100);  // for errors, while busy
  absl::Duration call_patience = absl::Seconds(1);         // an abort waits for a call this long
  // How long a communicator that is no longer used may flush what its peers still read: a kernel
  // ends on one rank before it does on all. Below the 500 ms in which a lost rank is to be over.
  absl::Duration flush_limit = absl::Milliseconds(300);
  // After this a thread inside NCCL's abort is left there: its hang must not become ours.
  absl::Duration abort_limit = absl::Seconds(10);
};

// The thread "nccl-watchdog" sleeps while nothing is in flight. Methods are thread-safe.
class NcclWatchdog {
 public:
  // `clock` and `gate` (NcclGate::word) outlive the process's last abort: see ~NcclWatchdog.
  // `failed` is called once, when the gate is held (where anything is in flight), on the thread
  // that has failed: what NCCL waits for, to abort, must be let go.
  NcclWatchdog(
      Clock& clock, std::atomic<uint32_t>* gate, NcclWatchdogOptions options = {},
      std::function<void()> failed = [] {});
  // Ends every communicator. Returns within abort_limit; a thread that NCCL keeps longer is left to
  // itself, with the communicators, and `released` stays false.
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  // From the beginning of its connection on. After a failure it is aborted at once.
  void Watch(std::shared_ptr<NcclCommunicator> communicator);
  // Flushes and frees it. REQUIRES: this rank's work on it is done.
  void Retire(std::shared_ptr<NcclCommunicator> communicator);
  // If it is idle when everything is failed, it is not ended: TakeKept gives it, once. Another one
  // takes its place; a watchdog that ends with it ends it.
  void KeepWhenIdle(std::shared_ptr<NcclCommunicator> communicator);
  std::shared_ptr<NcclCommunicator> TakeKept();
  // Whether anything is enqueued, or being connected.
  void SetBusy(bool busy);

  // The first failure counts. Holds the gate when anything is in flight, then aborts everything
  // (flushes, when nothing is).
  void Fail(absl::Status why);
  bool failed() const;
  absl::Status failure() const;
  // After a failure: the library has let go of all buffers.
  bool released() const;
  // Waits for it, abort_limit at most.
  bool AwaitReleased() const;

 private:
  struct Shared;
  static void Run(const std::shared_ptr<Shared>& shared);

  // Constant after construction.
  const std::shared_ptr<Shared> shared_;  // with the thread, which may outlive this object

  // Touched by the owner's thread.
  std::thread thread_;
};

}  // namespace coordd
