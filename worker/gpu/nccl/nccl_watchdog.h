// Notices what NCCL does not tell, and ends communicators without making anybody wait for it. (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/gpu/nccl/nccl_communicator.h"
#include "worker/gpu/nccl/nccl_gate.h"

namespace coordd {

struct NcclWatchdogOptions {
  absl::Duration poll_interval = absl::Milliseconds(100);  // for errors, while busy
  absl::Duration call_patience = absl::Seconds(1);         // an abort waits for a call this long
  // How long a communicator that is no longer used may flush what its peers still read: a kernel
  // ends on one rank before it does on all. Below the 500 ms in which a lost rank is to be over.
  absl::Duration flush_limit = absl::Milliseconds(300);
  // Freeing a communicator waits for everything that is on the device, and may keep the driver's
  // lock meanwhile. So one that is merely no longer used waits that long for a moment in which
  // nothing is; then it is freed in any case.
  absl::Duration idle_limit = absl::Seconds(10);
  // What runs and cannot be revoked keeps the held gate from the device, and with it whoever waits
  // for that, who cannot be told otherwise: after so long it is aborted all the same.
  absl::Duration gate_limit = absl::InfiniteDuration();
  // After this a thread inside NCCL's abort is left there: its hang must not become ours.
  absl::Duration abort_limit = absl::Seconds(10);
};

// What its owner does about a failure.
struct NcclWatchdogHooks {
  // Once, when the gate is held (where anything is in flight), before anybody else knows of the
  // failure: with the watchdog's lock, so it waits for nothing.
  std::function<void()> failing = [] {};
  // Once, behind that, on the thread that has failed.
  std::function<void()> failed = [] {};
  // On the thread "nccl-watchdog", before it ends anything: what NCCL waits for, to abort, must be
  // let go. It may take a while until that can be.
  std::function<void()> let_go = [] {};
  // Whether NCCL's kernels have left the device, for the log. It outlives the watchdog's threads,
  // and is called once communicators have been told to end, since it may wait for a free of the
  // program's.
  std::function<absl::StatusOr<bool>()> stream_ended = [] { return true; };
};

// The thread "nccl-watchdog" sleeps while nothing is in flight. It ends what runs when something
// has failed, and nothing else may keep it from that: a communicator that is no longer used is
// flushed and freed on the thread "nccl-end". While the gate is held nothing is freed at all, since
// a free waits for the gate: communicators are revoked (NcclCommunicator::Revoke), where NCCL can,
// and aborted once the gate has been passed. Methods are thread-safe.
class NcclWatchdog {
 public:
  // `clock` and `gate` (NcclGate::word) outlive the process's last abort: see ~NcclWatchdog.
  NcclWatchdog(Clock& clock, std::atomic<uint32_t>* gate, NcclWatchdogOptions options = {},
               NcclWatchdogHooks hooks = {});
  // Ends every communicator, held or not. Returns within abort_limit; a thread that NCCL keeps
  // longer is left to itself, with the communicators, and `released` stays false.
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  // From the beginning of its connection on. After a failure it is aborted at once.
  void Watch(std::shared_ptr<NcclCommunicator> communicator);
  // Instead of the one that it is being made of, which ends with it.
  void WatchInstead(const std::shared_ptr<NcclCommunicator>& origin,
                    std::shared_ptr<NcclCommunicator> made);
  // Flushes and frees it. REQUIRES: this rank's work on it is done.
  void Retire(std::shared_ptr<NcclCommunicator> communicator);
  // If it is idle when everything is failed, it is not ended: TakeKept gives it, once. Another one
  // takes its place; a watchdog that ends with it ends it.
  void KeepWhenIdle(std::shared_ptr<NcclCommunicator> communicator);
  std::shared_ptr<NcclCommunicator> TakeKept();
  // Whether anything is enqueued, or being connected.
  void SetBusy(bool busy);
  // Whether anything of this backend's is on the device.
  void SetOnDevice(bool on_device);

  // The first failure counts. Holds the gate when anything is in flight, then ends everything
  // (flushes, when nothing is).
  void Fail(absl::Status why);
  // Nothing is held any more.
  void GatePassed();
  bool failed() const;
  absl::Status failure() const;
  // After a failure: the library has let go of all buffers. While the gate is held only one that
  // can revoke does.
  bool released() const;
  // Waits for it, abort_limit at most.
  bool AwaitReleased() const;

 private:
  struct Shared;

  // Constant after construction.
  const std::shared_ptr<Shared> shared_;  // with the threads, which may outlive this object

  // Touched by the owner's thread.
  std::thread thread_, ends_thread_;
};

}  // namespace coordd
