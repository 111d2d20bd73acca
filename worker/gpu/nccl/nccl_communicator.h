// One communicator of NCCL. (io)
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/gpu/nccl/nccl_errors.h"
#include "worker/gpu/nccl/nccl_runtime.h"

namespace coordd {

// Thread-safe; calls into NCCL are one at a time, but for an Abort that has to interrupt one. It is
// non-blocking in NCCL's sense: what takes long is begun by one call and asked for with Pending.
class NcclCommunicator : public std::enable_shared_from_this<NcclCommunicator> {
 public:
  // Begins to connect the ranks. One id, or several (in equal order on all ranks) where the library
  // has ncclCommInitRankScalable. UNAVAILABLE: NCCL's error in full.
  static absl::StatusOr<std::shared_ptr<NcclCommunicator>> Begin(
      std::shared_ptr<NcclRuntime> runtime, NcclPlace place, absl::Span<NcclUniqueId> ids);
  // Begins to make one of `parent`'s ranks without these, which do not call. All others do, with
  // nothing under way on theirs. REQUIRES: NCCL has ncclCommShrink; strictly increasing ranks of
  // the parent, at least one, this one not among them; `place` is that in the new one. Until
  // Shrinking is false the parent is this object's, whose Abort aborts both. UNAVAILABLE, ABORTED:
  // the parent is as it was.
  static absl::StatusOr<std::shared_ptr<NcclCommunicator>> BeginShrink(
      std::shared_ptr<NcclCommunicator> parent, NcclPlace place, std::vector<int> excluded);
  // Begins to make a direct one of `origin`'s ranks: what it is given NCCL launches on the thread
  // that calls, where a non-blocking one has a thread made for each call (2.23.4). All ranks call,
  // with nothing under way on theirs. Its first calls of a kind wait for the other ranks to make
  // theirs, since NCCL connects them then; Abort and BeginRevoke end such a wait. It shares NCCL's
  // resources with `origin`, which is this object's from then on, and ends with it. REQUIRES: NCCL
  // has ncclCommSplit. UNAVAILABLE, ABORTED: `origin` is as it was.
  static absl::StatusOr<std::shared_ptr<NcclCommunicator>> BeginDirect(
      std::shared_ptr<NcclCommunicator> origin);
  ~NcclCommunicator();  // REQUIRES: Abort or Destroy has been called, else its memory stays
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  const NcclPlace& place() const { return place_; }

  // Whether NCCL is still at what was begun. An error that came up since: UNAVAILABLE with its
  // text; ABORTED after Abort.
  absl::StatusOr<bool> Pending();
  // The same for whoever must not wait for a call that another thread is in: then it is.
  absl::StatusOr<bool> PendingOrInCall();
  // One call, or one group of them; it may be pending afterwards. Statuses as above; `name` is what
  // the error calls it.
  absl::Status Call(absl::string_view name, absl::FunctionRef<NcclResult(NcclComm)> call);
  // Lets NCCL prepare memory of the device, which outlives the communicator, so that what is moved
  // from or to there needs no copy of NCCL's. Of this rank alone. REQUIRES: NCCL has
  // ncclCommRegister, and nothing is pending.
  absl::Status Register(absl::Span<std::byte> buffer);
  // Begins to make it a symmetric window: a collective of all ranks, with the beginning of memory
  // of NcclMemory, of which there is no other window, and equal sizes (of that memory, too); then
  // Pending, which lasts as long as a rank has not come. REQUIRES: as Register; the ranks have
  // deregistered the same windows before, since NCCL takes equal places in the memory that all see.
  absl::Status RegisterWindow(absl::Span<std::byte> buffer);
  // Once that is no longer pending: false: NCCL has no symmetric memory between these ranks, which
  // it has found out on all of them. True does not say that it has: some versions (2.27, 2.28) give
  // a window of memory that they have only registered, or done nothing with.
  bool HasWindow(const std::byte* begin);
  // What is registered no longer is, nor a window; all of it, or what begins there. Of this rank
  // alone. NCCL may free memory of its own, and wait for all that is on the device to do so.
  // REQUIRES: nothing is pending.
  absl::Status Deregister();
  absl::Status Deregister(const std::byte* begin);
  // Whether it has yet to come out of a BeginShrink or BeginDirect: of that only one thread asks
  // with Pending.
  bool IsBeingMade();
  // Whether NCCL has connected the ranks, so that it may have work of this communicator.
  bool Connected();
  // Whether Revoke is there: since 2.28.7, for one that is connected.
  bool CanRevoke();
  // Tells what runs on the device to end, and frees nothing; then AwaitRevoked, then Abort, which
  // frees. As Abort it waits for a call that another thread is in. From now on everybody else's
  // calls end with ABORTED. REQUIRES: CanRevoke.
  void BeginRevoke(Clock& clock, absl::Duration patience);
  // Returns when NCCL is through: what it has launched behind something else on the device ends
  // behind that, too, and its own threads, which look for the end every 500 ms, have ended.
  // UNAVAILABLE: NCCL's error.
  absl::Status AwaitRevoked();
  // Begins to flush what was enqueued; then Pending, then Destroy. What was registered no longer
  // is.
  absl::Status Finalize();
  void Destroy();
  // What a direct one was made of, once it is destroyed: to be finalized and destroyed, too.
  std::shared_ptr<NcclCommunicator> TakeOrigin();

  // For one that programs capture: `graph`, which is never launched, refers to it, and NCCL frees
  // no communicator that a graph refers to. So Revoke is NCCL's abort, on a thread that is left
  // alone, and frees nothing: kernels end at once, those of later launches of a graph, too, which
  // after ncclCommRevoke would wait for their peers for ever. Abort lets go of the graph; NCCL
  // frees the communicator when the program's graphs are gone as well, perhaps never. Neither
  // waits. REQUIRES: it is connected; nothing is pending.
  void Anchor(std::shared_ptr<const void> graph);

  // Ends what runs on the device and frees the communicator, which waits for everything that is on
  // the device, whoever's it is. Waits for a call that another thread is in, `patience` at most,
  // then aborts beside it, which ends that call. Idempotent. It may take long, or for ever: NCCL's
  // own abort is known to hang. `ready` is called, perhaps several times, when nothing but NCCL's
  // abort is left to be done, which begins with an order to what runs.
  void Abort(
      Clock& clock, absl::Duration patience, absl::FunctionRef<void()> ready = [] {});

 private:
  NcclCommunicator(std::shared_ptr<NcclRuntime> runtime, NcclPlace place, bool direct = false)
      : runtime_(std::move(runtime)), place_(Named(std::move(place))), direct_(direct) {}
  static NcclPlace Named(NcclPlace place);

  const NcclFunctions& nccl() const { return runtime_->nccl.functions; }
  DeviceRuntime& device() const { return *runtime_->device; }

  // The communicator, for this thread of the runtime alone until Leave; nullptr: it is gone.
  NcclComm Enter();
  void Leave();
  absl::Status Gone() const;
  // NCCL's abort, on a thread of its own.
  void AbortBeside(NcclComm comm) const;
  // Aborts an anchored communicator; false: it is not anchored.
  bool AbortAnchored(Clock& clock, absl::Duration patience, bool let_go);
  void AwaitLeftLocked(Clock& clock, absl::Duration patience) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DeregisterAll(NcclComm comm);
  // Once NCCL is through with what makes it of `parent`: what it has made. OK: true: it is not.
  absl::StatusOr<bool> AwaitMade(const std::shared_ptr<NcclCommunicator>& parent);
  // The one that is not direct: this one, if it is not.
  std::shared_ptr<NcclCommunicator> origin();
  absl::StatusOr<bool> Ask(bool wait_for_call);
  // A direct one's, which waits for what it flushes, on a thread of its own.
  absl::Status FinalizeBeside();
  // How long an end waits for a call: those of a direct one last microseconds, or for their peers.
  absl::Duration PatienceOf(absl::Duration patience) const;
  absl::Status Error(absl::string_view call, NcclResult result, NcclComm comm) const;

  // Constant after construction.
  const std::shared_ptr<NcclRuntime> runtime_;
  const NcclPlace place_;  // NCCL refers to its name
  const bool direct_;

  // Written by NCCL until Begin's init, BeginShrink's, BeginDirect's, and RegisterWindow, is over.
  NcclComm slot_ = nullptr;
  std::map<const std::byte*, NcclWindow> windows_;  // by what they are of; nullptr: it is none

  // What BeginRevoke and AwaitRevoked, which are called one behind the other, have found.
  NcclResult revoking_ = NcclResult::kSuccess;

  // Guarded by mu_.
  Mutex mu_;
  CondVar left_;
  NcclComm comm_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool entered_ ABSL_GUARDED_BY(mu_) = false;
  bool connected_ ABSL_GUARDED_BY(mu_) = false;
  NcclComm revoked_ ABSL_GUARDED_BY(mu_) = nullptr;                // what was comm_ until Revoke
  std::shared_ptr<NcclCommunicator> parent_ ABSL_GUARDED_BY(mu_);  // while it is being made of it
  std::shared_ptr<NcclCommunicator> origin_ ABSL_GUARDED_BY(mu_);  // of a direct one
  bool anchored_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const void> anchor_ ABSL_GUARDED_BY(mu_);  // until Abort
  bool finalizing_ ABSL_GUARDED_BY(mu_) = false;             // an anchored one
  // By FinalizeBeside, whose thread shares it.
  std::shared_ptr<std::atomic<bool>> flushed_ ABSL_GUARDED_BY(mu_);

  // Touched by whoever is in a call.
  std::map<const std::byte*, void*> registered_;  // NCCL's handles, by what they are of

  // Touched by who ends it.
  std::thread flush_;
};

}  // namespace coordd
