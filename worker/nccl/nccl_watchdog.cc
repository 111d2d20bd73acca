#include "worker/nccl/nccl_watchdog.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/thread.h"

namespace coordd {

struct NcclWatchdog::Shared {
  Shared(Clock& clock_in, std::atomic<uint32_t>* gate_in, NcclWatchdogOptions options_in,
         std::function<void()> on_failure_in)
      : options(options_in), clock(clock_in), gate(gate_in), on_failure(std::move(on_failure_in)) {}

  using Communicators = std::list<std::shared_ptr<NcclCommunicator>>;
  struct Retiring {
    std::shared_ptr<NcclCommunicator> communicator;
    absl::Time deadline;
    bool begun = false;
  };

  // Takes what is to be done now; false: the end.
  bool AwaitWork(Communicators* to_poll, Communicators* to_abort);
  void Fail(absl::Status why);
  // Whether it is the first.
  bool NoteFailure(absl::Status why);
  void RetireAllLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Abort(const Communicators& communicators);
  // Moves what is retiring on; the lock is not held.
  void Flush();

  // Constant after construction.
  const NcclWatchdogOptions options;
  Clock& clock;
  std::atomic<uint32_t>* const gate;
  const std::function<void()> on_failure;

  // Thread-safe by itself.
  std::atomic<bool> failed = false;
  std::atomic<bool> released = false;

  // Guarded by mu.
  Mutex mu;
  CondVar changed;
  bool stop ABSL_GUARDED_BY(mu) = false;
  bool busy ABSL_GUARDED_BY(mu) = false;
  bool ended ABSL_GUARDED_BY(mu) = false;
  absl::Time failed_at ABSL_GUARDED_BY(mu);
  absl::Status failure ABSL_GUARDED_BY(mu);
  Communicators watched ABSL_GUARDED_BY(mu);
  Communicators condemned ABSL_GUARDED_BY(mu);  // to be aborted
  std::list<Retiring> retiring ABSL_GUARDED_BY(mu);
  std::shared_ptr<NcclCommunicator> to_keep ABSL_GUARDED_BY(mu);  // of those that are watched
  std::shared_ptr<NcclCommunicator> kept ABSL_GUARDED_BY(mu);     // no longer

  // Touched by the watchdog's thread.
  std::list<Retiring> flushing;
};

NcclWatchdog::NcclWatchdog(Clock& clock, std::atomic<uint32_t>* gate, NcclWatchdogOptions options,
                           std::function<void()> failed)
    : shared_(std::make_shared<Shared>(clock, gate, options, std::move(failed))) {
  thread_ = StartThread("nccl-watchdog", [shared = shared_] { Run(shared); });
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
          return shared.ended;
        },
        shared.clock.Now() + shared.options.abort_limit);
  }
  if (ended) {
    thread_.join();
    return;
  }
  COORDD_LOG(kError, "NCCL has not returned from ending a communicator for ",
             absl::FormatDuration(shared_->options.abort_limit),
             ": its thread and its memory stay behind");
  // Joining it would hang. The object is never destroyed, so the thread stays somebody's.
  new std::thread(std::move(thread_));
}

void NcclWatchdog::Watch(std::shared_ptr<NcclCommunicator> communicator) {
  MutexLock lock(&shared_->mu);
  const bool too_late = shared_->failed.load(std::memory_order_acquire);
  (too_late ? shared_->condemned : shared_->watched).push_back(std::move(communicator));
  shared_->changed.NotifyAll();
}

void NcclWatchdog::Retire(std::shared_ptr<NcclCommunicator> communicator) {
  MutexLock lock(&shared_->mu);
  if (shared_->watched.remove(communicator) == 0) return;  // it is being aborted
  shared_->retiring.push_back(
      {std::move(communicator), shared_->clock.Now() + shared_->options.flush_limit});
  shared_->changed.NotifyAll();
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

void NcclWatchdog::Fail(absl::Status why) { shared_->Fail(std::move(why)); }

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
  const absl::Time deadline = clock.Now() + options.flush_limit;
  for (auto& communicator : watched) retiring.push_back({std::move(communicator), deadline});
  watched.clear();
}

void NcclWatchdog::Shared::Fail(absl::Status why) {
  // An abort that has begun meanwhile waits for what this lets go.
  if (NoteFailure(std::move(why))) on_failure();
}

bool NcclWatchdog::Shared::NoteFailure(absl::Status why) {
  MutexLock lock(&mu);
  if (failed.load(std::memory_order_relaxed)) return false;
  failure = std::move(why);
  failed_at = clock.Now();
  if (busy) {
    // Before NCCL's kernels end: nobody may read what they leave.
    gate->store(kGateHeld, std::memory_order_release);
    condemned.splice(condemned.end(), watched);
  } else {
    if (to_keep != nullptr && watched.remove(to_keep) > 0) kept = to_keep;
    RetireAllLocked();
  }
  to_keep = nullptr;
  if (condemned.empty()) released.store(true, std::memory_order_release);
  failed.store(true, std::memory_order_release);
  changed.NotifyAll();
  return true;
}

bool NcclWatchdog::Shared::AwaitWork(Communicators* to_poll, Communicators* to_abort) {
  MutexLock lock(&mu);
  const bool polling = !failed.load(std::memory_order_relaxed) && busy;
  const absl::Time wake = !flushing.empty() ? clock.Now() + absl::Milliseconds(1)
                          : polling         ? clock.Now() + options.poll_interval
                                            : absl::InfiniteFuture();
  const bool was_busy = busy;
  clock.Await(
      &mu, &changed,
      [this, was_busy] {
        mu.AssertHeld();
        return (stop && flushing.empty()) || !condemned.empty() || !retiring.empty() ||
               busy != was_busy;
      },
      wake);
  flushing.splice(flushing.end(), retiring);
  to_abort->splice(to_abort->end(), condemned);
  if (!failed.load(std::memory_order_relaxed) && busy) *to_poll = watched;
  return !(stop && flushing.empty() && to_abort->empty());
}

// All at a time: an abort waits for all that its communicator has on the device, which may stand on
// a stream behind something of another one that ends when that one is aborted, too. (NCCL can do so
// for a group of aborts since 2.22.)
void NcclWatchdog::Shared::Abort(const Communicators& communicators) {
  std::vector<std::thread> beside;
  for (const auto& communicator : communicators) {
    if (communicator == communicators.back()) {
      communicator->Abort(clock, options.call_patience);
      break;
    }
    beside.push_back(StartThread(
        "nccl-abort", [this, communicator] { communicator->Abort(clock, options.call_patience); }));
  }
  for (std::thread& thread : beside) thread.join();
}

void NcclWatchdog::Shared::Flush() {
  for (auto it = flushing.begin(); it != flushing.end();) {
    bool over = false;
    if (!it->begun) {
      it->begun = true;
      over = !it->communicator->Finalize().ok();
    }
    const absl::StatusOr<bool> pending = over ? true : it->communicator->Pending();
    if (pending.ok() && !*pending) {
      it->communicator->Destroy();
    } else if (over || !pending.ok() || clock.Now() >= it->deadline) {
      it->communicator->Abort(clock, absl::ZeroDuration());
    } else {
      ++it;
      continue;
    }
    it = flushing.erase(it);
  }
}

void NcclWatchdog::Run(const std::shared_ptr<Shared>& shared) {
  while (true) {
    Shared::Communicators to_poll, to_abort;
    if (!shared->AwaitWork(&to_poll, &to_abort)) break;
    shared->Abort(to_abort);
    if (!to_abort.empty()) {
      MutexLock lock(&shared->mu);
      shared->released.store(true, std::memory_order_release);
      shared->changed.NotifyAll();
      COORDD_LOG(kInfo, "NCCL has aborted ", to_abort.size(), " communicators within ",
                 absl::ToInt64Milliseconds(shared->clock.Now() - shared->failed_at),
                 " ms of the failure");
    }
    shared->Flush();
    for (const auto& communicator : to_poll) {
      // What fails there fails that alone (CommunicatorMaker).
      if (communicator->Shrinking()) continue;
      const absl::StatusOr<bool> pending = communicator->Pending();
      if (!pending.ok() && !absl::IsAborted(pending.status())) shared->Fail(pending.status());
    }
  }
  MutexLock lock(&shared->mu);
  shared->ended = true;
  shared->changed.NotifyAll();
}

}  // namespace coordd
