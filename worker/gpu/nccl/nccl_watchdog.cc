#include "worker/gpu/nccl/nccl_watchdog.h"

#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "worker/gpu/nccl/known_memory.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {

namespace {

// All at a time: what each waits for on the device may stand on a stream behind something of
// another one, which ends when that one is ended, too. (NCCL can do so for a group of aborts
// since 2.22.)
void AtATime(const std::list<std::shared_ptr<NcclCommunicator>>& communicators,
             absl::FunctionRef<void(NcclCommunicator&)> end) {
  std::vector<std::thread> beside;
  for (const auto& communicator : communicators) {
    if (communicator == communicators.back()) {
      end(*communicator);
      break;
    }
    beside.push_back(StartThread("nccl-abort", [end, communicator] { end(*communicator); }));
  }
  for (std::thread& thread : beside) thread.join();
}

// NCCL's abort tells its kernels to end, then frees, which waits for those of all communicators and
// may keep everybody out of the driver meanwhile: so all come as far as that, and then begin.
class Starters {
 public:
  Starters(Clock& clock, size_t count) : clock_(clock), missing_(count) {}

  // Of one that comes, or will not.
  void Arrive() {
    MutexLock lock(&mu_);
    --missing_;
    changed_.NotifyAll();
  }
  // Not for ever: one of them may be inside a call that ends when another one is aborted.
  void AwaitOthers() {
    constexpr absl::Duration kLimit = absl::Milliseconds(100);
    MutexLock lock(&mu_);
    clock_.Await(
        &mu_, &changed_,
        [this] {
          mu_.AssertHeld();
          return missing_ == 0;
        },
        clock_.Now() + kLimit);
  }

 private:
  Clock& clock_;
  Mutex mu_;
  CondVar changed_;
  size_t missing_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

struct NcclWatchdog::Shared {
  Shared(Clock& clock_in, std::atomic<uint32_t>* gate_in, NcclWatchdogOptions options_in,
         NcclWatchdogHooks hooks_in)
      : options(options_in), clock(clock_in), gate(gate_in), hooks(std::move(hooks_in)) {}

  using Communicators = std::list<std::shared_ptr<NcclCommunicator>>;
  struct Retiring {
    std::shared_ptr<NcclCommunicator> communicator;
    absl::Time idle_by;                            // longer it does not wait for an idle device
    absl::Time deadline = absl::InfiniteFuture();  // of its flush, once that has begun
  };

  // Of "nccl-watchdog".
  void Watch();
  // Takes what is to be done now; false: the end.
  bool AwaitWork(Communicators* to_poll, Communicators* to_end);
  void Poll(const Communicators& communicators);
  void End(const Communicators& communicators);
  // Whether NCCL has let go of all buffers without an abort.
  bool Revoke(const Communicators& communicators);
  void NoteStreamEnd();
  void AwaitPassed(absl::Duration limit);
  void NoteReleased(absl::string_view what, size_t count);

  // Of "nccl-end".
  void FlushAll();
  // Takes what may be freed now; false: the end.
  bool AwaitRetired(std::list<Retiring>* flushing);
  // Moves them on; the lock is not held.
  void Flush(std::list<Retiring>* flushing);
  bool MayFreeLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return !held || stop; }
  bool MayFree() {
    MutexLock lock(&mu);
    return MayFreeLocked();
  }
  bool IsTimeToEndLocked(const Retiring& retired) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return stop || (!held && (!on_device.load() || clock.Now() >= retired.idle_by));
  }

  void Fail(absl::Status why);
  // Whether it is the first.
  bool NoteFailure(absl::Status why);
  void RetireAllLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Constant after construction.
  const NcclWatchdogOptions options;
  Clock& clock;
  std::atomic<uint32_t>* const gate;
  const NcclWatchdogHooks hooks;

  // Thread-safe by itself.
  std::atomic<bool> failed = false;
  std::atomic<bool> released = false;
  std::atomic<bool> on_device = false;

  // Guarded by mu.
  Mutex mu;
  CondVar changed, ends_changed;  // for "nccl-watchdog" and its owner; for "nccl-end"
  bool stop ABSL_GUARDED_BY(mu) = false;
  bool busy ABSL_GUARDED_BY(mu) = false;
  bool held ABSL_GUARDED_BY(mu) = false;  // the gate, since the failure
  int ended ABSL_GUARDED_BY(mu) = 0;      // of the two threads
  absl::Time failed_at ABSL_GUARDED_BY(mu);
  absl::Status failure ABSL_GUARDED_BY(mu);
  Communicators watched ABSL_GUARDED_BY(mu);
  Communicators condemned ABSL_GUARDED_BY(mu);  // to be aborted
  std::list<Retiring> retiring ABSL_GUARDED_BY(mu);
  std::shared_ptr<NcclCommunicator> to_keep ABSL_GUARDED_BY(mu);  // of those that are watched
  std::shared_ptr<NcclCommunicator> kept ABSL_GUARDED_BY(mu);     // no longer
};

NcclWatchdog::NcclWatchdog(Clock& clock, std::atomic<uint32_t>* gate, NcclWatchdogOptions options,
                           NcclWatchdogHooks hooks)
    : shared_(std::make_shared<Shared>(clock, gate, options, std::move(hooks))) {
  thread_ = StartThread("nccl-watchdog", [shared = shared_] { shared->Watch(); });
  ends_thread_ = StartThread("nccl-end", [shared = shared_] { shared->FlushAll(); });
}

NcclWatchdog::~NcclWatchdog() {
  bool ended = false;
  {
    Shared& shared = *shared_;
    MutexLock lock(&shared.mu);
    shared.stop = true;
    if (shared.kept != nullptr) shared.watched.push_back(std::move(shared.kept));
    shared.RetireAllLocked();
    shared.changed.NotifyAll();
    ended = shared.clock.Await(
        &shared.mu, &shared.changed,
        [&shared] {
          shared.mu.AssertHeld();
          return shared.ended == 2;
        },
        shared.clock.Now() + shared.options.abort_limit);
  }
  if (ended) {
    thread_.join();
    ends_thread_.join();
    return;
  }
  COORDD_LOG(kError, "NCCL has not returned from ending a communicator for ",
             absl::FormatDuration(shared_->options.abort_limit),
             ": its thread and its memory stay behind");
  // Joining them would hang. The objects are never destroyed, so the threads stay somebody's.
  new std::thread(std::move(thread_));
  new std::thread(std::move(ends_thread_));
}

void NcclWatchdog::Watch(std::shared_ptr<NcclCommunicator> communicator) {
  MutexLock lock(&shared_->mu);
  const bool too_late = shared_->failed.load(std::memory_order_acquire);
  (too_late ? shared_->condemned : shared_->watched).push_back(std::move(communicator));
  shared_->changed.NotifyAll();
}

void NcclWatchdog::WatchInstead(const std::shared_ptr<NcclCommunicator>& origin,
                                std::shared_ptr<NcclCommunicator> made) {
  MutexLock lock(&shared_->mu);
  shared_->watched.remove(origin);
  shared_->condemned.remove(origin);
  const bool too_late = shared_->failed.load(std::memory_order_acquire);
  (too_late ? shared_->condemned : shared_->watched).push_back(std::move(made));
  shared_->changed.NotifyAll();
}

void NcclWatchdog::Retire(std::shared_ptr<NcclCommunicator> communicator) {
  MutexLock lock(&shared_->mu);
  if (shared_->watched.remove(communicator) == 0) return;  // it is being aborted
  KnownMemory::OfProcess().NoteEnding(*communicator);
  shared_->retiring.push_back(
      {std::move(communicator), shared_->clock.Now() + shared_->options.idle_limit});
  shared_->ends_changed.NotifyAll();
}

void NcclWatchdog::KeepWhenIdle(std::shared_ptr<NcclCommunicator> communicator) {
  MutexLock lock(&shared_->mu);
  shared_->to_keep = std::move(communicator);
}

std::shared_ptr<NcclCommunicator> NcclWatchdog::TakeKept() {
  MutexLock lock(&shared_->mu);
  return std::exchange(shared_->kept, nullptr);
}

void NcclWatchdog::SetBusy(bool busy) {
  MutexLock lock(&shared_->mu);
  if (shared_->busy == busy) return;
  shared_->busy = busy;
  if (busy) shared_->changed.NotifyAll();
}

void NcclWatchdog::SetOnDevice(bool on_device) {
  if (shared_->on_device.exchange(on_device) == on_device || on_device) return;
  MutexLock lock(&shared_->mu);
  if (!shared_->retiring.empty()) shared_->ends_changed.NotifyAll();
}

void NcclWatchdog::Fail(absl::Status why) { shared_->Fail(std::move(why)); }

void NcclWatchdog::GatePassed() {
  MutexLock lock(&shared_->mu);
  if (!std::exchange(shared_->held, false)) return;
  shared_->changed.NotifyAll();
  shared_->ends_changed.NotifyAll();
}

bool NcclWatchdog::failed() const { return shared_->failed.load(std::memory_order_acquire); }

absl::Status NcclWatchdog::failure() const {
  MutexLock lock(&shared_->mu);
  return shared_->failure;
}

bool NcclWatchdog::released() const { return shared_->released.load(std::memory_order_acquire); }

bool NcclWatchdog::AwaitReleased() const {
  MutexLock lock(&shared_->mu);
  return shared_->clock.Await(
      &shared_->mu, &shared_->changed,
      [this] { return shared_->released.load(std::memory_order_acquire); },
      shared_->clock.Now() + shared_->options.abort_limit);
}

void NcclWatchdog::Shared::RetireAllLocked() {
  const absl::Time idle_by = clock.Now() + options.idle_limit;
  for (auto& communicator : watched) retiring.push_back({std::move(communicator), idle_by});
  watched.clear();
  ends_changed.NotifyAll();
}

void NcclWatchdog::Shared::Fail(absl::Status why) {
  if (NoteFailure(std::move(why))) hooks.failed();
}

bool NcclWatchdog::Shared::NoteFailure(absl::Status why) {
  MutexLock lock(&mu);
  if (failed.load(std::memory_order_relaxed)) return false;
  failure = std::move(why);
  failed_at = clock.Now();
  for (const auto& communicator : watched) KnownMemory::OfProcess().NoteEnding(*communicator);
  if (busy) {
    // Before NCCL's kernels end: nobody may read what they leave.
    gate->store(kGateHeld, std::memory_order_release);
    held = true;
    condemned.splice(condemned.end(), watched);
  } else {
    if (to_keep != nullptr && watched.remove(to_keep) > 0) kept = to_keep;
    RetireAllLocked();
  }
  to_keep = nullptr;
  hooks.failing();
  if (condemned.empty()) released.store(true, std::memory_order_release);
  failed.store(true, std::memory_order_release);
  changed.NotifyAll();
  return true;
}

// --- "nccl-watchdog" ----------------------------------------------------------------------------

void NcclWatchdog::Shared::Watch() {
  while (true) {
    Communicators to_poll, to_end;
    if (!AwaitWork(&to_poll, &to_end)) break;
    if (!to_end.empty()) End(to_end);
    Poll(to_poll);
  }
  MutexLock lock(&mu);
  ++ended;
  changed.NotifyAll();
}

bool NcclWatchdog::Shared::AwaitWork(Communicators* to_poll, Communicators* to_end) {
  MutexLock lock(&mu);
  const bool polling = !failed.load(std::memory_order_relaxed) && busy;
  const bool was_busy = busy;
  clock.Await(
      &mu, &changed,
      [this, was_busy] {
        mu.AssertHeld();
        return stop || !condemned.empty() || busy != was_busy;
      },
      polling ? clock.Now() + options.poll_interval : absl::InfiniteFuture());
  to_end->splice(to_end->end(), condemned);
  if (!failed.load(std::memory_order_relaxed) && busy) *to_poll = watched;
  return !(stop && to_end->empty());
}

void NcclWatchdog::Shared::Poll(const Communicators& communicators) {
  for (const auto& communicator : communicators) {
    // What fails there fails that alone (CommunicatorMaker).
    if (communicator->IsBeingMade()) continue;
    const absl::StatusOr<bool> pending = communicator->PendingOrInCall();
    if (!pending.ok() && !absl::IsAborted(pending.status())) Fail(pending.status());
  }
}

void NcclWatchdog::Shared::End(const Communicators& communicators) {
  hooks.let_go();
  if (!MayFree()) {
    const bool revoked = Revoke(communicators);
    if (revoked) NoteReleased("let go of", communicators.size());
    AwaitPassed(revoked ? absl::InfiniteDuration() : options.gate_limit);
  }
  Starters starters(clock, communicators.size());
  AtATime(communicators, [this, &starters](NcclCommunicator& communicator) {
    bool arrived = false;
    communicator.Abort(clock, options.call_patience, [&] {
      if (std::exchange(arrived, true)) return;
      starters.Arrive();
      starters.AwaitOthers();
    });
    if (!arrived) starters.Arrive();
  });
  NoteReleased("aborted", communicators.size());
}

// One that is not connected has nothing on the device, and nothing of the buffers.
bool NcclWatchdog::Shared::Revoke(const Communicators& communicators) {
  Communicators running;
  for (const auto& communicator : communicators)
    if (communicator->Connected()) running.push_back(communicator);
  if (running.empty()) return true;
  const auto count = static_cast<ptrdiff_t>(running.size());
  const std::string version = running.front()->place().nccl_version;
  running.remove_if([](const auto& communicator) { return !communicator->CanRevoke(); });
  const ptrdiff_t left = count - static_cast<ptrdiff_t>(running.size());
  if (left > 0) {
    COORDD_LOG(kInfo, "NCCL ", version, " has no ncclCommRevoke (2.28.7): what runs on ", left,
               " communicators is aborted when the program has been told of the failure");
  }
  if (running.empty()) return false;
  AtATime(running, [this](NcclCommunicator& communicator) {
    communicator.BeginRevoke(clock, options.call_patience);
  });
  NoteStreamEnd();
  std::atomic<bool> all = left == 0;
  AtATime(running, [&all](NcclCommunicator& communicator) {
    const absl::Status revoked = communicator.AwaitRevoked();
    if (revoked.ok()) return;
    all = false;
    COORDD_LOG(kWarning, "a communicator is not revoked: ", revoked.message());
  });
  return all;
}

// The device is the others' again then. What stands behind the held gate does not end, so a bound.
void NcclWatchdog::Shared::NoteStreamEnd() {
  constexpr absl::Duration kLimit = absl::Seconds(2);
  absl::Time since;
  {
    MutexLock lock(&mu);
    since = failed_at;
  }
  const absl::Time until = clock.Now() + kLimit;
  IdleWait idle(1, 1);
  while (clock.Now() < until) {
    const absl::StatusOr<bool> passed = hooks.stream_ended();
    if (!passed.ok()) return;
    if (*passed) {
      COORDD_LOG(kInfo, "NCCL's kernels have left the device within ",
                 absl::ToInt64Milliseconds(clock.Now() - since), " ms of the failure");
      return;
    }
    idle.Wait();
  }
  COORDD_LOG(kInfo, "NCCL's kernels have not left the device within ",
             absl::FormatDuration(kLimit));
}

void NcclWatchdog::Shared::AwaitPassed(absl::Duration limit) {
  MutexLock lock(&mu);
  clock.Await(
      &mu, &changed,
      [this] {
        mu.AssertHeld();
        return MayFreeLocked();
      },
      clock.Now() + limit);
}

void NcclWatchdog::Shared::NoteReleased(absl::string_view what, size_t count) {
  MutexLock lock(&mu);
  released.store(true, std::memory_order_release);
  changed.NotifyAll();
  COORDD_LOG(kInfo, "NCCL has ", what, " ", count, " communicators within ",
             absl::ToInt64Milliseconds(clock.Now() - failed_at), " ms of the failure");
}

// --- "nccl-end" ---------------------------------------------------------------------------------

void NcclWatchdog::Shared::FlushAll() {
  std::list<Retiring> flushing;
  while (AwaitRetired(&flushing)) Flush(&flushing);
  MutexLock lock(&mu);
  ++ended;
  changed.NotifyAll();
}

bool NcclWatchdog::Shared::AwaitRetired(std::list<Retiring>* flushing) {
  MutexLock lock(&mu);
  const bool could_free = MayFreeLocked();
  absl::Time wake = absl::InfiniteFuture();
  if (!retiring.empty() && could_free) wake = retiring.front().idle_by;
  if (!flushing->empty() && could_free) wake = clock.Now() + absl::Milliseconds(1);
  clock.Await(
      &mu, &ends_changed,
      [this, flushing, could_free] {
        mu.AssertHeld();
        if (!flushing->empty() && MayFreeLocked() != could_free) return true;
        if (!retiring.empty()) return IsTimeToEndLocked(retiring.front());
        return stop && flushing->empty();
      },
      wake);
  while (!retiring.empty() && IsTimeToEndLocked(retiring.front()))
    flushing->splice(flushing->end(), retiring, retiring.begin());
  return !(stop && flushing->empty());
}

void NcclWatchdog::Shared::Flush(std::list<Retiring>* flushing) {
  for (auto it = flushing->begin(); it != flushing->end();) {
    if (!MayFree()) return;
    bool over = false;
    if (it->deadline == absl::InfiniteFuture()) {
      it->deadline = clock.Now() + options.flush_limit;
      // What is still being connected NCCL refuses to flush; it has nothing to flush, either.
      over = !it->communicator->Connected() || !it->communicator->Finalize().ok();
    }
    const absl::StatusOr<bool> pending = over ? true : it->communicator->Pending();
    if (pending.ok() && !*pending) {
      it->communicator->Destroy();
      if (auto origin = it->communicator->TakeOrigin())
        flushing->push_back({std::move(origin), it->idle_by});
    } else if (over || !pending.ok() || clock.Now() >= it->deadline) {
      it->communicator->Abort(clock, absl::ZeroDuration());
    } else {
      ++it;
      continue;
    }
    it = flushing->erase(it);
  }
}

}  // namespace coordd
