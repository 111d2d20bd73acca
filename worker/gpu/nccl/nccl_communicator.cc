#include "worker/gpu/nccl/nccl_communicator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "worker/gpu/nccl/known_memory.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {

namespace {

// Threads that NCCL keeps as long as the program has graphs, for ever perhaps.
void LeaveAlone(std::thread thread) {
  static Mutex mu;
  static auto* const left = new std::vector<std::thread>;
  MutexLock lock(&mu);
  left->push_back(std::move(thread));
}

}  // namespace

NcclPlace NcclCommunicator::Named(NcclPlace place) {
  place.name = CommunicatorName(place);
  return place;
}

absl::StatusOr<std::shared_ptr<NcclCommunicator>> NcclCommunicator::Begin(
    std::shared_ptr<NcclRuntime> runtime, NcclPlace place, absl::Span<NcclUniqueId> ids) {
  std::shared_ptr<NcclCommunicator> communicator(
      new NcclCommunicator(std::move(runtime), std::move(place)));
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope,
                          DeviceScope::Enter(communicator->device(), communicator->place_.device));
  const NcclFunctions& nccl = communicator->nccl();
  NcclConfig config = communicator->runtime_->Config(/*blocking=*/false, communicator->place_.name);
  const NcclPlace& at = communicator->place_;
  const bool scalable = ids.size() > 1;
  const NcclResult result =
      scalable ? nccl.CommInitRankScalable(&communicator->slot_, at.size, at.rank,
                                           static_cast<int>(ids.size()), ids.data(), &config)
               : nccl.CommInitRankConfig(&communicator->slot_, at.size, ids[0], at.rank, &config);
  const NcclComm comm = communicator->slot_;
  {
    MutexLock lock(&communicator->mu_);
    communicator->comm_ = comm;
  }
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return communicator;
  const absl::Status error = communicator->Error(
      scalable ? "ncclCommInitRankScalable" : "ncclCommInitRankConfig", result, comm);
  // It knows of no peer yet, so nothing can hang.
  if (comm != nullptr) communicator->Abort(Clock::Real(), absl::ZeroDuration());
  return error;
}

absl::StatusOr<std::shared_ptr<NcclCommunicator>> NcclCommunicator::BeginShrink(
    std::shared_ptr<NcclCommunicator> parent, NcclPlace place, std::vector<int> excluded) {
  std::shared_ptr<NcclCommunicator> shrunk(
      new NcclCommunicator(parent->runtime_, std::move(place)));
  NcclConfig config = shrunk->runtime_->Config(/*blocking=*/false, shrunk->place_.name);
  COORDD_RETURN_IF_ERROR(parent->origin()->Call("ncclCommShrink", [&](NcclComm comm) {
    return shrunk->nccl().CommShrink(comm, excluded.data(), static_cast<int>(excluded.size()),
                                     &shrunk->slot_, &config, kNcclShrinkDefault);
  }));
  MutexLock lock(&shrunk->mu_);
  shrunk->parent_ = std::move(parent);
  return shrunk;
}

absl::StatusOr<std::shared_ptr<NcclCommunicator>> NcclCommunicator::BeginDirect(
    std::shared_ptr<NcclCommunicator> origin) {
  std::shared_ptr<NcclCommunicator> direct(
      new NcclCommunicator(origin->runtime_, origin->place_, /*direct=*/true));
  NcclConfig config = direct->runtime_->Config(/*blocking=*/true, direct->place_.name);
  config.split_share = 1;
  COORDD_RETURN_IF_ERROR(origin->Call("ncclCommSplit", [&](NcclComm comm) {
    return direct->nccl().CommSplit(comm, /*color=*/0, direct->place_.rank, &direct->slot_,
                                    &config);
  }));
  MutexLock lock(&direct->mu_);
  direct->parent_ = std::move(origin);
  return direct;
}

NcclCommunicator::~NcclCommunicator() {
  if (!flush_.joinable()) return;
  MutexLock lock(&mu_);
  if (flushed_->load()) {
    flush_.join();
  } else {
    LeaveAlone(std::move(flush_));
  }
}

std::shared_ptr<NcclCommunicator> NcclCommunicator::origin() {
  MutexLock lock(&mu_);
  return origin_ != nullptr ? origin_ : shared_from_this();
}

std::shared_ptr<NcclCommunicator> NcclCommunicator::TakeOrigin() {
  MutexLock lock(&mu_);
  return std::exchange(origin_, nullptr);
}

absl::Status NcclCommunicator::Error(absl::string_view call, NcclResult result,
                                     NcclComm comm) const {
  const char* error = nccl().GetErrorString(result);
  const char* detail = nccl().GetLastError(comm);
  return absl::UnavailableError(NcclErrorText({.call = call,
                                               .error = error != nullptr ? error : "unknown error",
                                               .detail = detail != nullptr ? detail : ""},
                                              place_));
}

absl::Status NcclCommunicator::Gone() const {
  return absl::AbortedError(
      absl::StrCat("the communicator of process set ", ToInt(place_.group), " was aborted"));
}

NcclComm NcclCommunicator::Enter() {
  MutexLock lock(&mu_);
  while (entered_ && comm_ != nullptr) left_.Wait(&mu_);
  if (comm_ != nullptr) entered_ = true;
  return comm_;
}

void NcclCommunicator::Leave() {
  MutexLock lock(&mu_);
  entered_ = false;
  left_.NotifyAll();
}

bool NcclCommunicator::Connected() {
  MutexLock lock(&mu_);
  return connected_;
}

bool NcclCommunicator::CanRevoke() {
  MutexLock lock(&mu_);
  return anchored_ || (nccl().CommRevoke != nullptr && connected_);
}

void NcclCommunicator::Anchor(std::shared_ptr<const void> graph) {
  MutexLock lock(&mu_);
  anchored_ = true;
  anchor_ = std::move(graph);
}

// It makes no context current: what frees memory meanwhile may have the driver's lock, and wait for
// the very kernels that this ends. NCCL tells them before it calls the driver, on threads of its
// own.
void NcclCommunicator::AbortBeside(NcclComm comm) const {
  LeaveAlone(StartThread("nccl-graphs-end",
                         [runtime = runtime_, comm] { runtime->nccl.functions.CommAbort(comm); }));
}

bool NcclCommunicator::AbortAnchored(Clock& clock, absl::Duration patience, bool let_go) {
  NcclComm comm = nullptr;
  std::shared_ptr<const void> anchor;
  {
    MutexLock lock(&mu_);
    if (!anchored_) return false;
    // Of one rank NCCL has no kernels, and no part of the graph that would keep it from freeing.
    if (!let_go && place_.size == 1) return true;
    AwaitLeftLocked(clock, patience);
    comm = std::exchange(comm_, nullptr);
    if (let_go) anchor = std::move(anchor_);
    left_.NotifyAll();
  }
  if (comm != nullptr) AbortBeside(comm);
  return true;  // and the graph goes
}

bool NcclCommunicator::IsBeingMade() {
  MutexLock lock(&mu_);
  return parent_ != nullptr;
}

// NCCL tells of the parent when it is through, and leaves the new handle at that moment.
absl::StatusOr<bool> NcclCommunicator::AwaitMade(const std::shared_ptr<NcclCommunicator>& parent) {
  COORDD_ASSIGN_OR_RETURN(const bool pending, parent->origin()->Pending());
  if (pending) return true;
  const NcclComm made = __atomic_load_n(&slot_, __ATOMIC_ACQUIRE);
  MutexLock lock(&mu_);
  if (parent_ == nullptr) return Gone();
  if (made == nullptr) {
    return absl::UnavailableError(
        absl::StrCat(direct_ ? "ncclCommSplit" : "ncclCommShrink", " ended with no communicator"));
  }
  comm_ = made;
  if (direct_) origin_ = std::move(parent_);
  parent_ = nullptr;
  return false;
}

absl::StatusOr<bool> NcclCommunicator::Pending() { return Ask(/*wait_for_call=*/true); }

absl::StatusOr<bool> NcclCommunicator::PendingOrInCall() { return Ask(/*wait_for_call=*/false); }

absl::StatusOr<bool> NcclCommunicator::Ask(bool wait_for_call) {
  std::shared_ptr<NcclCommunicator> parent;
  {
    MutexLock lock(&mu_);
    if (flushed_ != nullptr && !flushed_->load()) return true;
    parent = parent_;
  }
  if (parent != nullptr) {
    COORDD_ASSIGN_OR_RETURN(const bool pending, AwaitMade(parent));
    if (pending) return true;
  }
  {
    MutexLock lock(&mu_);
    if (finalizing_) return true;  // until its time is over
    if (entered_ && !wait_for_call) return true;
  }
  const NcclComm comm = Enter();
  if (comm == nullptr) return Gone();
  NcclResult asynchronous = NcclResult::kSuccess;
  const NcclResult result = nccl().CommGetAsyncError(comm, &asynchronous);
  const NcclResult first = result != NcclResult::kSuccess ? result : asynchronous;
  absl::Status error;
  if (first != NcclResult::kSuccess && first != NcclResult::kInProgress)
    error = Error("what NCCL was doing", first, comm);
  Leave();
  if (first == NcclResult::kSuccess) {
    MutexLock lock(&mu_);
    connected_ = true;
  }
  if (!error.ok()) return error;
  return first == NcclResult::kInProgress;
}

absl::Status NcclCommunicator::Call(absl::string_view name,
                                    absl::FunctionRef<NcclResult(NcclComm)> call) {
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(device(), place_.device));
  const NcclComm comm = Enter();
  if (comm == nullptr) return Gone();
  const NcclResult result = call(comm);
  absl::Status error;
  if (result != NcclResult::kSuccess && result != NcclResult::kInProgress)
    error = Error(name, result, comm);
  Leave();
  return error;
}

absl::Status NcclCommunicator::Register(absl::Span<std::byte> buffer) {
  return Call("ncclCommRegister", [this, buffer](NcclComm comm) {
    void* handle = nullptr;
    const NcclResult result = nccl().CommRegister(comm, buffer.data(), buffer.size(), &handle);
    // Without a handle it succeeded in doing nothing (NCCL_LOCAL_REGISTER=0).
    if (result != NcclResult::kSuccess || handle == nullptr) return result;
    registered_[buffer.data()] = handle;
    KnownMemory::OfProcess().Add(*this, place_.group, buffer);
    return result;
  });
}

absl::Status NcclCommunicator::RegisterWindow(absl::Span<std::byte> buffer) {
  return Call("ncclCommWindowRegister", [this, buffer](NcclComm comm) {
    NcclWindow& window = windows_[buffer.data()];
    window = nullptr;
    KnownMemory::OfProcess().Add(*this, place_.group, buffer);
    return nccl().CommWindowRegister(comm, buffer.data(), buffer.size(), &window,
                                     kNcclWindowSymmetric);
  });
}

bool NcclCommunicator::HasWindow(const std::byte* begin) {
  if (Enter() == nullptr) return false;
  const auto found = windows_.find(begin);
  const bool has = found != windows_.end() && found->second != nullptr;
  Leave();
  return has;
}

void NcclCommunicator::DeregisterAll(NcclComm comm) {
  for (const auto& [begin, handle] : std::exchange(registered_, {}))
    nccl().CommDeregister(comm, handle);
  for (const auto& [begin, window] : std::exchange(windows_, {}))
    if (window != nullptr) nccl().CommWindowDeregister(comm, window);
  KnownMemory::OfProcess().RemoveAll(*this);
}

absl::Status NcclCommunicator::Deregister() {
  return Call("ncclCommDeregister", [this](NcclComm comm) {
    DeregisterAll(comm);
    return NcclResult::kSuccess;
  });
}

absl::Status NcclCommunicator::Deregister(const std::byte* begin) {
  return Call("ncclCommDeregister", [this, begin](NcclComm comm) {
    const auto window = windows_.extract(begin);
    const auto registered = registered_.extract(begin);
    NcclResult result = NcclResult::kSuccess;
    if (!window.empty() && window.mapped() != nullptr) {
      result = nccl().CommWindowDeregister(comm, window.mapped());
    } else if (!registered.empty()) {
      result = nccl().CommDeregister(comm, registered.mapped());
    }
    if (result == NcclResult::kSuccess) KnownMemory::OfProcess().Remove(*this, begin);
    return result;
  });
}

absl::Status NcclCommunicator::Finalize() {
  device().OwnThisThread();
  {
    MutexLock lock(&mu_);
    // NCCL's would not come to its end while there are graphs.
    if (anchored_) finalizing_ = true;
    if (anchored_) return absl::OkStatus();
  }
  if (direct_) return FinalizeBeside();
  return Call("ncclCommFinalize", [this](NcclComm comm) {
    DeregisterAll(comm);
    return nccl().CommFinalize(comm);
  });
}

absl::Status NcclCommunicator::FinalizeBeside() {
  NcclComm flushed = nullptr;
  COORDD_RETURN_IF_ERROR(Call("ncclCommDeregister", [&](NcclComm comm) {
    DeregisterAll(comm);
    flushed = comm;
    return NcclResult::kSuccess;
  }));
  const auto over = std::make_shared<std::atomic<bool>>(false);
  {
    MutexLock lock(&mu_);
    flushed_ = over;
  }
  flush_ = StartThread("nccl-flush", [runtime = runtime_, device = place_.device, flushed, over] {
    runtime->device->OwnThisThread();
    const auto scope = DeviceScope::Enter(*runtime->device, device);
    runtime->nccl.functions.CommFinalize(flushed);
    over->store(true);
  });
  return absl::OkStatus();
}

absl::Duration NcclCommunicator::PatienceOf(absl::Duration patience) const {
  constexpr absl::Duration kOfDirect = absl::Milliseconds(20);
  return direct_ ? std::min(patience, kOfDirect) : patience;
}

void NcclCommunicator::Destroy() {
  const auto scope = DeviceScope::Enter(device(), place_.device);
  const NcclComm comm = Enter();
  if (comm == nullptr) return;
  nccl().CommDestroy(comm);
  KnownMemory::OfProcess().RemoveAll(*this);
  MutexLock lock(&mu_);
  comm_ = nullptr;
  entered_ = false;
  left_.NotifyAll();
}

void NcclCommunicator::AwaitLeftLocked(Clock& clock, absl::Duration patience) {
  clock.Await(
      &mu_, &left_,
      [this] {
        mu_.AssertHeld();
        return !entered_;
      },
      clock.Now() + patience);
}

void NcclCommunicator::BeginRevoke(Clock& clock, absl::Duration patience) {
  if (AbortAnchored(clock, patience, /*let_go=*/false)) return;
  NcclComm comm = nullptr;
  {
    MutexLock lock(&mu_);
    AwaitLeftLocked(clock, PatienceOf(patience));
    // From here on nobody else finds it.
    comm = revoked_ = std::exchange(comm_, nullptr);
    left_.NotifyAll();
  }
  if (comm == nullptr) return;
  device().OwnThisThread();
  const auto scope = DeviceScope::Enter(device(), place_.device);
  revoking_ = nccl().CommRevoke(comm, kNcclRevokeDefault);
}

absl::Status NcclCommunicator::AwaitRevoked() {
  NcclComm comm = nullptr;
  {
    MutexLock lock(&mu_);
    comm = revoked_;
  }
  if (comm == nullptr) return absl::OkStatus();
  IdleWait idle(1, 1);
  while (revoking_ == NcclResult::kInProgress) {
    idle.Wait();
    NcclResult asynchronous = NcclResult::kSuccess;
    revoking_ = nccl().CommGetAsyncError(comm, &asynchronous);
    if (revoking_ == NcclResult::kSuccess) revoking_ = asynchronous;
  }
  if (revoking_ == NcclResult::kSuccess) return absl::OkStatus();
  return Error("ncclCommRevoke", revoking_, comm);
}

void NcclCommunicator::Abort(Clock& clock, absl::Duration patience,
                             absl::FunctionRef<void()> ready) {
  if (AbortAnchored(clock, patience, /*let_go=*/true)) return;
  NcclComm comm = nullptr;
  std::shared_ptr<NcclCommunicator> parent, origin;
  {
    MutexLock lock(&mu_);
    parent = std::move(parent_);
    parent_ = nullptr;
  }
  // It has what is to become this one at its hands, and tells it to stop; first, since it would
  // write to what is freed.
  if (parent != nullptr) parent->Abort(clock, patience, ready);
  {
    MutexLock lock(&mu_);
    if (parent != nullptr) comm_ = __atomic_load_n(&slot_, __ATOMIC_ACQUIRE);
    AwaitLeftLocked(clock, PatienceOf(patience));
    // From here on nobody else finds it.
    comm = std::exchange(revoked_ != nullptr ? revoked_ : comm_, nullptr);
    origin = std::move(origin_);
    origin_ = nullptr;
    left_.NotifyAll();
  }
  if (comm != nullptr) {
    device().OwnThisThread();
    const auto scope = DeviceScope::Enter(device(), place_.device);
    ready();
    nccl().CommAbort(comm);
    KnownMemory::OfProcess().RemoveAll(*this);
  }
  if (origin != nullptr) origin->Abort(clock, patience);
}

}  // namespace coordd
