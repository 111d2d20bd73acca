// The thread "device" of DevicePlane.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/base/exact_timers.h"
#include "worker/gpu/cuda/stream_capture.h"
#include "worker/gpu/nccl/nccl_route.h"
#include "worker/gpu/plane/device_moves.h"
#include "worker/gpu/plane/device_plane.h"
#include "worker/interfaces/lanes.h"

namespace coordd {
namespace {

// How long the thread sleeps, while something is on the device, until it looks whether that is
// through. Nobody waits for it but the next use of a buffer; what is new wakes it at once.
constexpr absl::Duration kPollMin = absl::Microseconds(20);
constexpr absl::Duration kPollMax = absl::Microseconds(500);
// Of a caller: others may submit for ever.
constexpr int kDriveStepsMax = 16;
constexpr absl::string_view kNoFloat8 =
    "float8 is reduced by NCCL 2.24 and later on GPUs of compute capability 9.0 and later, which "
    "not all ranks have";

bool HasDirect(const BatchJob& batch) {
  const auto& tensors = batch.tensors();
  return std::any_of(tensors.begin(), tensors.end(), [](const TensorJob& t) { return t.direct; });
}

}  // namespace

void DevicePlane::Run() {
  UseExactTimers();
  absl::Duration poll = kPollMin;
  absl::Time until = absl::InfinitePast();
  while (true) {
    calls_.TakeAll(until);
    const DeviceSeat::Sit seat(&seat_);
    bool moved = TakeAndAdvance();
    moved = CollectDone() || moved;
    if (IsOver()) return End();
    poll = moved ? kPollMin : std::min(2 * poll, kPollMax);
    until = moved              ? absl::InfinitePast()
            : running_.empty() ? absl::InfiniteFuture()
                               : clock_.Now() + poll;
  }
}

bool DevicePlane::TakeAndAdvance() {
  bool moved = false;
  for (Input& input : inbox_.TakeAll(absl::InfinitePast())) {
    std::visit([this](auto& in) { Take(in); }, input);
    moved = true;
  }
  return Advance() || moved;
}

// What is away comes back to somebody who knows that this has ended.
bool DevicePlane::IsOver() {
  const bool at_hand = std::any_of(queue_.begin(), queue_.end(),
                                   [](const Entry& entry) { return entry.batch != nullptr; });
  return inbox_.Finished() && !at_hand && (running_.empty() || HoldsGate());
}

void DevicePlane::End() {
  ended_ = true;
  // Nothing on the device ends before the program knows; the next generation does not wait for it.
  for (const std::shared_ptr<Running>& running : std::exchange(running_, {})) {
    Keep(running);
    Finish(std::move(running->batch), absl::AbortedError("the data plane was stopped"));
  }
}

void DevicePlane::DriveFor(const Work& work) {
  // Whoever is there sees to it, or will when it has been woken.
  const std::shared_ptr<NcclBackend> made = backend();
  if (made == nullptr || !seat_.TryTake()) return;
  // A profiler is shown the launches of one thread.
  if (!ended_ && nvtx_ == nullptr) {
    const RelaxedCapture relaxed(*runtime_->device);
    bool moved = true;
    for (int i = 0; i < kDriveStepsMax && moved && !work.enqueued() && !work.done(); ++i) {
      moved = TakeAndAdvance();
      moved = made->Progress() || moved;
    }
  }
  seat_.Leave();
}

bool DevicePlane::HoldsGate() {
  const std::shared_ptr<NcclBackend> made = backend();
  return made != nullptr && made->HoldsGate();
}

void DevicePlane::Keep(const std::shared_ptr<Running>& running) {
  kept_.push_back(running);
  for (const TensorJob& tensor : running->batch->tensors())
    if (tensor.result.owned_output != nullptr) kept_.push_back(tensor.result.owned_output);
}

void DevicePlane::Take(Planned& planned) {
  Entry entry;
  entry.process_set = planned.batch->process_set();
  entry.lane = planned.batch->data_lane();
  entry.sequence = planned.batch->sequence();
  entry.batch = std::move(planned.batch);
  BeginAgreement(entry.process_set);  // of a rank that has joined, or a pair
  queue_.push_back(std::move(entry));
}

void DevicePlane::Take(Returned& returned) {
  const auto entry = std::find_if(queue_.begin(), queue_.end(), [&](const Entry& e) {
    return e.lane == returned.batch->data_lane() && e.sequence == returned.batch->sequence();
  });
  COORDD_CHECK(entry != queue_.end() && entry->batch == nullptr);
  entry->batch = std::move(returned.batch);
  entry->was_away = true;
  entry->batch->sizes_only = false;
}

void DevicePlane::Take(GroupEnded& ended) {
  std::unique_ptr<DeviceAgreement> agreement;
  {
    MutexLock lock(&mu_);
    const auto found = agreements_.find(ended.process_set);
    if (found != agreements_.end()) {
      agreement = std::move(found->second);
      agreements_.erase(found);
    }
  }
  agreement.reset();  // from now on it notes nothing
  {
    MutexLock lock(&mu_);
    if (facts_.decisions.erase(ended.process_set) > 0) ++facts_version_;
  }
  if (defined_.erase(ended.process_set) == 0) return;
  if (const std::shared_ptr<NcclBackend> made = backend()) made->EndGroup(ended.process_set);
  if (with_exchanges_.erase(ended.process_set) > 0)
    hooks_.end_exchanges(ExchangeLane(ended.process_set));
}

bool DevicePlane::Advance() {
  bool moved = false;
  Before before;
  for (auto it = queue_.begin(); it != queue_.end();) {
    const Next next = NextOf(*it, before);
    if (next == Next::kWait || next == Next::kWaitForNccl) {
      before.nccl = before.nccl || next == Next::kWaitForNccl;
      before.waiting.insert(it->lane);
      if (next == Next::kWait) before.staged.insert(it->lane);
      ++it;
      continue;
    }
    moved = true;
    if (next == Next::kGone) it = queue_.erase(it);
  }
  std::erase_if(ended_lanes_, [&](LaneId lane) {
    const auto of_lane = [lane](const Entry& entry) { return entry.lane == lane; };
    if (std::any_of(queue_.begin(), queue_.end(), of_lane)) return false;
    hooks_.end_lane(lane);
    return true;
  });
  return moved;
}

DevicePlane::Next DevicePlane::NextOf(Entry& entry, const Before& before) {
  if (entry.batch == nullptr) return entry.for_nccl ? Next::kWaitForNccl : Next::kWait;
  if (aborted_.load(std::memory_order_acquire) || !entry.batch->status.ok()) {
    // Of one whose sizes have not come: as in LaunchOnDevice.
    if (entry.for_nccl && !entry.batch->status.ok()) Abort();
    Finish(std::move(entry.batch), absl::AbortedError("the data plane was stopped"));
    return Next::kGone;
  }
  const auto decision = DecisionOf(entry.process_set);
  if (!decision.has_value()) return Next::kWaitForNccl;
  if (!decision->ok()) {
    Finish(std::move(entry.batch), decision->status());
    return Next::kGone;
  }
  const bool carried = CarriedByNccl(entry.batch->tensors().front().spec(), **decision);
  if (!carried || entry.batch->staged) {
    if (before.waiting.count(entry.lane) > 0) return Next::kWait;
    if (!carried) WarnOnce((*decision)->nccl ? kNoFloat8 : (*decision)->why_not);
    if (!HasDirect(*entry.batch)) {
      hooks_.to_host(std::move(entry.batch));
      return Next::kGone;
    }
    hooks_.stage(std::move(entry.batch),
                 [this](std::unique_ptr<BatchJob> batch) { HostDone(std::move(batch)); });
    return Next::kAway;
  }
  entry.for_nccl = true;
  if (entry.batch->NeedsSizes() && !entry.was_away) {
    // On the host lane where what is staged has its place in the order of the plans too.
    if (before.staged.count(entry.lane) > 0) return Next::kWaitForNccl;
    entry.batch->sizes_only = true;
    hooks_.to_host(std::move(entry.batch));
    return Next::kAway;
  }
  if (before.nccl || (!running_.empty() && results()->full())) return Next::kWaitForNccl;
  LaunchOnDevice(std::move(entry.batch));
  return Next::kGone;
}

void DevicePlane::LaunchOnDevice(std::unique_ptr<BatchJob> batch) {
  auto running = std::make_shared<Running>();
  running->batch = std::move(batch);
  const absl::Status launched = TryLaunch(running);
  if (launched.ok()) {
    running_.push_back(std::move(running));
    return;
  }
  // The others launch it, and NCCL knows calls by their order alone: what this rank launched next
  // would be taken for this one.
  Abort();
  Finish(std::move(running->batch), launched);
}

absl::Status DevicePlane::TryLaunch(const std::shared_ptr<Running>& running) {
  COORDD_RETURN_IF_ERROR(MakeBackend());
  BatchJob& batch = *running->batch;
  const std::shared_ptr<NcclBackend> backend = this->backend();
  COORDD_RETURN_IF_ERROR(DefineAtBackend(batch.process_set(), *backend));
  batch.UseDevice(
      backend->device(), [this](int64_t bytes) { return AllocateResult(bytes); },
      [this](int64_t bytes) -> absl::StatusOr<std::byte*> {
        COORDD_ASSIGN_OR_RETURN(const absl::Span<std::byte> place,
                                sink_.Take(*runtime_->device, this->backend()->device(), bytes));
        return place.data();
      });
  results()->CountBatch();
  batch.times.started = batch.times.launched = clock_.Now();
  COORDD_RETURN_IF_ERROR(batch.Prepare());
  COORDD_ASSIGN_OR_RETURN(const absl::Span<std::byte> scratch, ScratchFor(batch));
  CollectiveArgs args = batch.Payload(scratch);
  running->before = batch.TakeMoves();
  batch.Unpack();
  running->behind = batch.TakeMoves();
  Running* const raw = running.get();  // it stays until `done`
  args.before = [this, raw](DeviceKernels& kernels, CudaStream stream) {
    return Prologue(*raw, kernels, stream);
  };
  if (!running->behind.empty()) {
    args.behind = [this, raw](DeviceKernels& kernels, CudaStream stream) {
      return EnqueueMoves(raw->behind, *runtime_->device, raw->batch->device(), kernels, stream,
                          identities_);
    };
  }
  args.enqueued = [this, raw](const std::shared_ptr<DeviceEvent>& event) { Enqueued(*raw, event); };
  return backend->Launch(std::move(args), [running](absl::Status status) {
    running->range.reset();
    running->done = true;
    running->status = std::move(status);
  });
}

absl::Status DevicePlane::DefineAtBackend(ProcessSetId process_set, NcclBackend& backend) {
  if (defined_.count(process_set) > 0) return absl::OkStatus();
  std::vector<int32_t> members;
  if (ToInt(process_set) == 0) {
    members.resize(static_cast<size_t>(layout_.size()));
    std::iota(members.begin(), members.end(), 0);
  } else {
    MutexLock lock(&mu_);
    const auto found = sets_.find(process_set);
    COORDD_CHECK(found != sets_.end());  // it ends behind its last batch
    members = *found->second;
  }
  if (ToInt(process_set) != 0) {
    std::vector<Rank> ranks;
    for (int32_t rank : members) ranks.push_back(Rank{rank});
    COORDD_RETURN_IF_ERROR(backend.DefineGroup(process_set, ranks));
  }
  defined_.insert(process_set);
  const auto decision = DecisionOf(process_set);
  if (ToInt(process_set) == 0) UseKept(decision, backend);
  if (!decision.has_value() || !decision->ok()) return absl::OkStatus();
  if ((*decision)->windows) backend.UseWindow(process_set);
  if ((*decision)->ranks_per_node > 0)
    UseHierarchy(process_set, (*decision)->ranks_per_node, members, backend);
  return absl::OkStatus();
}

void DevicePlane::UseKept(const std::optional<absl::StatusOr<DeviceDecision>>& decision,
                          NcclBackend& backend) {
  const bool shrinks = decision.has_value() && decision->ok() && !(*decision)->excluded.empty();
  const std::optional<KeptClaim> claim = access_.ClaimOfKept(backend.device());
  std::unique_ptr<KeptCommunicator> kept = access_.TakeKept();
  const bool agreed_on =
      shrinks && claim.has_value() && claim->generation == (*decision)->shrinks_of;
  if (kept != nullptr && !agreed_on) backend.Discard(std::move(kept));
  if (!shrinks) return;
  const std::vector<int32_t>& excluded = (*decision)->excluded;
  backend.UseShrink({std::move(kept), std::vector<int>(excluded.begin(), excluded.end())});
}

void DevicePlane::UseHierarchy(ProcessSetId process_set, int32_t ranks_per_node,
                               absl::Span<const int32_t> ranks, NcclBackend& backend) {
  const auto self = std::find(ranks.begin(), ranks.end(), ToInt(layout_.self())) - ranks.begin();
  std::vector<int32_t> across;  // in this rank's place on each node
  for (auto at = static_cast<size_t>(self % ranks_per_node); at < ranks.size();
       at += static_cast<size_t>(ranks_per_node)) {
    across.push_back(ranks[at]);
  }
  Hierarchy how;
  how.ranks_per_node = ranks_per_node;
  how.lane = ExchangeLane(process_set);
  how.exchange = hooks_.exchange;
  hooks_.open_exchanges(how.lane, std::make_shared<const std::vector<int32_t>>(std::move(across)));
  with_exchanges_.insert(process_set);
  backend.UseHierarchy(process_set, std::move(how));
}

void DevicePlane::BeginRange(Running& running) {
  const BatchJob& batch = *running.batch;
  const ProcessSetId set = batch.process_set();
  if (nvtx_named_.insert(set).second) {
    nvtx_->NameCategory(
        set, ToInt(set) == 0 ? std::string("all ranks") : absl::StrCat("process set ", ToInt(set)));
  }
  int64_t bytes = 0;
  for (const TensorJob& tensor : batch.tensors()) bytes += SizeBytes(tensor.spec());
  const TensorSpec& first = batch.tensors().front().spec();
  const size_t more = batch.tensors().size() - 1;
  running.range.emplace(
      *nvtx_, set,
      absl::StrCat(Name(first.kind), " ", first.name, more > 0 ? absl::StrCat(" +", more) : "",
                   ", ", bytes, " bytes"),
      bytes);
}

absl::Status DevicePlane::Prologue(Running& running, DeviceKernels& kernels, CudaStream stream) {
  if (nvtx_ != nullptr) BeginRange(running);
  DeviceRuntime& device = *runtime_->device;
  const int32_t index = running.batch->device();
  const DeviceEvent* last = nullptr;  // tensors of one call share theirs
  for (const TensorJob& tensor : running.batch->tensors()) {
    if (tensor.ready == nullptr || tensor.ready.get() == last) continue;
    last = tensor.ready.get();
    COORDD_RETURN_IF_ERROR(last->LetWait(stream));
  }
  return EnqueueMoves(running.before, device, index, kernels, stream, identities_);
}

void DevicePlane::Enqueued(Running& running, const std::shared_ptr<DeviceEvent>& event) {
  running.range.reset();
  // Works may outlive the worker: theirs keeps what it needs.
  const std::shared_ptr<DeviceEvent> kept(
      event.get(), [event = event, runtime = runtime_](DeviceEvent*) mutable { event.reset(); });
  for (TensorJob& tensor : running.batch->tensors()) {
    if (tensor.absent || !tensor.status.ok()) continue;
    hooks_.free_name(tensor.spec());
    tensor.work->Enqueued(kept, tensor.result);
  }
  // There is a communicator now.
  if (!std::exchange(noted_net_plugin_, true)) NoteNetPlugin();
}

absl::Status DevicePlane::MakeBackend() {
  if (backend() != nullptr) return absl::OkStatus();
  COORDD_ASSIGN_OR_RETURN(runtime_, access_.Nccl());
  runtime_->device->OwnThisThread();
  const auto profiler = options_.environment.find(kNvtxVariable);
  if (profiler != options_.environment.end()) nvtx_ = Nvtx::Attach(profiler->second);
  NcclBackendOptions options = options_.backend;
  {
    MutexLock lock(&mu_);
    options.device = device_;
    options.window = window_.value_or(nullptr);
  }
  auto made = std::make_shared<NcclBackend>(runtime_, clock_, options);
  COORDD_RETURN_IF_ERROR(made->Connect(layout_, store_, absl::InfiniteFuture()));
  {
    MutexLock lock(&mu_);
    backend_ = made;
    results_ = std::make_shared<ResultMemory>(runtime_->device, ResultMemory::Frees::kWhenTold);
  }
  if (aborted_.load(std::memory_order_acquire)) made->Abort();
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<std::byte>> DevicePlane::ScratchFor(const BatchJob& batch) {
  const int64_t bytes = batch.ScratchBytes();
  const int64_t buffer_bytes = FusionBufferBytes();
  if (bytes == 0) return absl::Span<std::byte>();
  if (bytes <= buffer_bytes) {
    if (fusion_buffer_.empty()) {
      COORDD_ASSIGN_OR_RETURN(fusion_buffer_, backend()->AllocateFusionBuffer(buffer_bytes));
      fusion_bytes_.store(buffer_bytes + large_scratch_.size_bytes(), std::memory_order_relaxed);
    }
    return fusion_buffer_;
  }
  // What an allgather collects can be larger than what each rank gives, and than any buffer.
  COORDD_ASSIGN_OR_RETURN(const absl::Span<std::byte> large,
                          large_scratch_.Take(*runtime_->device, batch.device(), bytes));
  fusion_bytes_.store(static_cast<int64_t>(fusion_buffer_.size()) + large_scratch_.size_bytes(),
                      std::memory_order_relaxed);
  return large;
}

absl::StatusOr<std::shared_ptr<std::byte[]>> DevicePlane::AllocateResult(int64_t bytes) {
  return results()->Take(backend()->device(), bytes);
}

bool DevicePlane::FreeIdleResults() {
  const std::shared_ptr<ResultMemory> made = results();
  if (!running_.empty() || made == nullptr || !made->full() || HoldsGate()) return false;
  made->Free();
  return true;
}

bool DevicePlane::CollectDone() {
  if (running_.empty()) return FreeIdleResults();
  bool moved = backend()->Progress();
  // They end in the order of the stream; of those that fail, what was never there goes first.
  for (auto it = running_.begin(); it != running_.end();) {
    if (!(*it)->done) {
      ++it;
      continue;
    }
    const std::shared_ptr<Running> ended = std::move(*it);
    it = running_.erase(it);
    if (!ended->status.ok() && HoldsGate()) Keep(ended);
    Finish(std::move(ended->batch), std::move(ended->status));
    moved = true;
  }
  return FreeIdleResults() || moved;
}

}  // namespace coordd
