// The thread "device" of DevicePlane.
#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/base/exact_timers.h"
#include "worker/gpu/cuda/stream_capture.h"
#include "worker/gpu/nccl/nccl_route.h"
#include "worker/gpu/plane/device_moves.h"
#include "worker/gpu/plane/device_plane.h"

namespace coordd {
namespace {

// How long the thread sleeps, while something is on the device, until it looks
// whether that is through. Nobody waits for it but the next use of a buffer;
// what is new wakes it at once.
constexpr absl::Duration kPollMin = absl::Microseconds(20);
constexpr absl::Duration kPollMax = absl::Microseconds(500);
// Of a caller: others may submit for ever.
constexpr int kDriveStepsMax = 16;
// Nobody asks the device how far it is with what has been there for less than that.
constexpr absl::Duration kLooksLong = absl::Milliseconds(900);
constexpr absl::Duration kLookEvery = absl::Milliseconds(50);
constexpr absl::string_view kNoFloat8 =
    "float8 is reduced by NCCL 2.24 and later on GPUs of compute capability "
    "9.0 and later, which "
    "not all ranks have";

bool HasDirect(const BatchJob& batch) {
  const auto& tensors = batch.tensors();
  return std::any_of(tensors.begin(), tensors.end(), [](const TensorJob& t) { return t.direct; });
}

}  // namespace

void DevicePlane::Run() {
  UseExactTimers();
  absl::Duration poll = kPollMin;
  absl::Time until = absl::InfinitePast(), look = absl::InfinitePast();
  while (true) {
    inbox_.AwaitCall(until);
    const DeviceSeat::Sit seat(&seat_);
    bool moved = TakeAndAdvance();
    moved = CollectDone() || moved;
    if (IsOver()) return End();
    poll = moved ? kPollMin : std::min(2 * poll, kPollMax);
    until = moved ? absl::InfinitePast() : absl::InfiniteFuture();
    if (moved || running_.empty()) continue;
    const absl::Time now = clock_.Now();
    until = now + poll;
    if (now < look) continue;
    look = now + kLookEvery;
    LookAtOldest(now);
  }
}

bool DevicePlane::TakeAndAdvance() {
  bool moved = false;
  for (Input& input : inbox_.TakeAll()) {
    std::visit([this](auto& in) { Take(in); }, input);
    moved = true;
  }
  return Advance() || moved;
}

// What is away comes back to somebody who knows that this has ended.
bool DevicePlane::IsOver() {
  return inbox_.Finished() && !queue_.has_any() && (running_.empty() || backend_.HoldsGate());
}

void DevicePlane::End() {
  ended_ = true;
  // Nothing on the device ends before the program knows; the next generation
  // does not wait for it.
  for (const std::shared_ptr<Running>& running : std::exchange(running_, {})) {
    Keep(running);
    FinishOnDevice(*running, absl::AbortedError("the data plane was stopped"));
  }
}

void DevicePlane::DriveFor(const Work& work) {
  // Whoever is there sees to it, or will when it has been woken.
  const std::shared_ptr<NcclBackend> made = backend_.get();
  if (made == nullptr || !seat_.TryTake()) return;
  // A profiler is shown the launches of one thread.
  if (!ended_ && !ranges_.listened_to()) {
    const RelaxedCapture relaxed(backend_.device());
    bool moved = true;
    for (int i = 0; i < kDriveStepsMax && moved && !work.enqueued() && !work.done(); ++i) {
      moved = TakeAndAdvance();
      moved = made->Progress() || moved;
    }
  }
  seat_.Leave();
}

void DevicePlane::Keep(const std::shared_ptr<Running>& running) {
  backend_.Keep(running);
  for (const TensorJob& tensor : running->batch->tensors())
    if (tensor.result.owned_output != nullptr) backend_.Keep(tensor.result.owned_output);
}

void DevicePlane::Take(Planned& planned) {
  agreements_.Begin(planned.batch->process_set());  // of a rank that has joined, or a pair
  queue_.Push(std::move(planned.batch));
}

void DevicePlane::Take(GroupEnded& ended) {
  agreements_.Forget(ended.process_set);
  backend_.EndGroup(ended.process_set);
}

void DevicePlane::Take(MemoryReleased& released) {
  const auto done = [done = released.done] { done->store(true, std::memory_order_release); };
  const std::shared_ptr<NcclBackend> backend = backend_.get();
  if (backend == nullptr) return done();
  backend->ReleaseMemory(released.process_set, released.memory, done);
}

bool DevicePlane::Advance() {
  return queue_.Advance([this](DeviceQueue::Entry& entry,
                               const DeviceQueue::Before& before) { return NextOf(entry, before); },
                        [this](LaneId lane) { hooks_.end_lane(lane); });
}

DevicePlane::Next DevicePlane::NextOf(DeviceQueue::Entry& entry,
                                      const DeviceQueue::Before& before) {
  if (entry.batch == nullptr) return entry.for_nccl ? Next::kWaitForNccl : Next::kWait;
  if (aborted_.load(std::memory_order_acquire) || !entry.batch->status.ok()) {
    // Of one whose sizes have not come: as in LaunchOnDevice.
    if (entry.for_nccl && !entry.batch->status.ok()) Abort();
    Finish(std::move(entry.batch), absl::AbortedError("the data plane was stopped"));
    return Next::kGone;
  }
  const auto decision = agreements_.DecisionOf(entry.process_set);
  if (!decision.has_value()) return Next::kWaitForNccl;
  if (!decision->ok()) {
    Finish(std::move(entry.batch), decision->status());
    return Next::kGone;
  }
  const bool carried = CarriedByNccl(entry.batch->tensors().front().spec(), **decision);
  if (!carried || entry.batch->staged) return ToHost(entry, before, **decision, carried);
  entry.for_nccl = true;
  if (entry.batch->NeedsSizes() && !entry.was_away) {
    // On the host lane where what is staged has its place in the order of the
    // plans too.
    if (before.staged.count(entry.lane) > 0) return Next::kWaitForNccl;
    entry.batch->sizes_only = true;
    hooks_.to_host(std::move(entry.batch));
    return Next::kAway;
  }
  if (before.nccl || (!running_.empty() && backend_.results()->full())) return Next::kWaitForNccl;
  LaunchOnDevice(std::move(entry.batch));
  return Next::kGone;
}

DevicePlane::Next DevicePlane::ToHost(DeviceQueue::Entry& entry, const DeviceQueue::Before& before,
                                      const DeviceDecision& decision, bool carried) {
  if (before.waiting.count(entry.lane) > 0) return Next::kWait;
  if (!carried) WarnOnce(decision.nccl ? kNoFloat8 : decision.why_not);
  if (!HasDirect(*entry.batch)) {
    hooks_.to_host(std::move(entry.batch));
    return Next::kGone;
  }
  hooks_.stage(std::move(entry.batch),
               [this](std::unique_ptr<BatchJob> batch) { HostDone(std::move(batch)); });
  return Next::kAway;
}

void DevicePlane::LaunchOnDevice(std::unique_ptr<BatchJob> batch) {
  auto running = std::make_shared<Running>();
  running->batch = std::move(batch);
  BatchTimes& times = running->batch->times;
  times.started = times.launched = times.enqueued = clock_.Now();
  running->number = report_.progress().Launching(*running->batch, times.launched);
  const absl::Status launched = TryLaunch(running);
  if (launched.ok()) {
    running_.push_back(std::move(running));
    return;
  }
  // The others launch it, and NCCL knows calls by their order alone: what this
  // rank launched next would be taken for this one.
  Abort();
  FinishOnDevice(*running, launched);
}

absl::Status DevicePlane::TryLaunch(const std::shared_ptr<Running>& running) {
  if (backend_.get() == nullptr) {
    COORDD_RETURN_IF_ERROR(backend_.Make(aborted_));
    ranges_.Attach(options_.environment);
  }
  BatchJob& batch = *running->batch;
  const std::shared_ptr<NcclBackend> backend = backend_.get();
  COORDD_RETURN_IF_ERROR(backend_.Define(batch.process_set()));
  batch.UseDevice(
      backend->device(),
      [this](int64_t bytes) { return backend_.results()->Take(backend_.get()->device(), bytes); },
      [this](int64_t bytes) { return scratch_.Sink(bytes, backend_.device(), *backend_.get()); });
  if (batch.tensors().size() == 1 && batch.scales()) {
    const auto decision = agreements_.DecisionOf(batch.process_set());
    if (decision.has_value() && decision->ok()) batch.LeaveScalingToNccl(**decision);
  }
  backend_.results()->CountBatch();
  COORDD_RETURN_IF_ERROR(batch.Prepare());
  COORDD_ASSIGN_OR_RETURN(const absl::Span<std::byte> scratch,
                          scratch_.For(batch.ScratchBytes(), backend_.device(), *backend));
  CollectiveArgs args = batch.Payload(scratch);
  args.windows = backend_.registrations().WindowsOf(batch);
  running->before = batch.TakeMoves();
  batch.Unpack();
  running->behind = batch.TakeMoves();
  Running* const raw = running.get();  // it stays until `done`
  args.before = [this, raw](DeviceKernels& kernels, CudaStream stream) {
    return Prologue(*raw, kernels, stream);
  };
  if (!running->behind.empty()) {
    args.behind = [this, raw](DeviceKernels& kernels, CudaStream stream) {
      return EnqueueMoves(raw->behind, backend_.device(), raw->batch->device(), kernels, stream,
                          scratch_.identities());
    };
  }
  args.enqueued = [this, raw](const std::shared_ptr<DeviceEvent>& event) { Enqueued(*raw, event); };
  return backend->Launch(std::move(args), [running](absl::Status status) {
    running->range.reset();
    running->done = true;
    running->status = std::move(status);
  });
}

absl::Status DevicePlane::Prologue(Running& running, DeviceKernels& kernels, CudaStream stream) {
  ranges_.Begin(*running.batch, running.range);
  const int32_t index = running.batch->device();
  const DeviceEvent* last = nullptr;  // tensors of one call share theirs
  for (const TensorJob& tensor : running.batch->tensors()) {
    if (tensor.ready == nullptr || tensor.ready.get() == last) continue;
    last = tensor.ready.get();
    COORDD_RETURN_IF_ERROR(last->LetWait(stream));
  }
  COORDD_RETURN_IF_ERROR(backend_.registrations().Apply(*running.batch, *backend_.get()));
  return EnqueueMoves(running.before, backend_.device(), index, kernels, stream,
                      scratch_.identities());
}

void DevicePlane::Enqueued(Running& running, const std::shared_ptr<DeviceEvent>& event) {
  running.range.reset();
  running.batch->times.enqueued = clock_.Now();
  report_.progress().Enqueued(running.number, running.batch->times.enqueued);
  // Works may outlive the worker: theirs keeps what it needs.
  const std::shared_ptr<DeviceEvent> kept(
      event.get(),
      [event = event, runtime = backend_.runtime()](DeviceEvent*) mutable { event.reset(); });
  for (TensorJob& tensor : running.batch->tensors()) {
    if (tensor.absent || !tensor.status.ok()) continue;
    hooks_.free_name(tensor.spec());
    tensor.work->Enqueued(kept, tensor.result);
  }
  // There is a communicator now.
  report_.NoteNetPlugin([this] { return LoadedNetPlugin(options_.environment); });
}

void DevicePlane::FinishOnDevice(Running& running, absl::Status status) {
  const absl::Time now = clock_.Now();
  running.batch->times.turn = report_.progress().Ended(running.number, now);
  Finish(std::move(running.batch), std::move(status), now);
}

// An error is found by who asks for the end of the batch, which comes behind.
void DevicePlane::LookAtOldest(absl::Time now) {
  const auto unclear = report_.progress().Unclear(now - kLooksLong);
  if (!unclear.has_value()) return;
  const auto of_number = [&](const auto& running) { return running->number == *unclear; };
  const auto found = std::find_if(running_.begin(), running_.end(), of_number);
  if (found == running_.end()) return;
  const auto is_made = [](const TensorJob& tensor) {
    return tensor.ready == nullptr || tensor.ready->Happened().value_or(true);
  };
  const auto& tensors = (*found)->batch->tensors();
  const bool are_made = std::all_of(tensors.begin(), tensors.end(), is_made);
  report_.progress().NoteTensors(*unclear, are_made, now);
}

bool DevicePlane::FreeIdleResults() {
  const std::shared_ptr<ResultMemory> made = backend_.results();
  if (!running_.empty() || made == nullptr || !made->full() || backend_.HoldsGate()) return false;
  made->Free();
  return true;
}

bool DevicePlane::CollectDone() {
  if (running_.empty()) return FreeIdleResults();
  bool moved = backend_.get()->Progress();
  // They end in the order of the stream; of those that fail, what was never
  // there goes first.
  for (auto it = running_.begin(); it != running_.end();) {
    if (!(*it)->done) {
      ++it;
      continue;
    }
    const std::shared_ptr<Running> ended = std::move(*it);
    it = running_.erase(it);
    if (!ended->status.ok() && backend_.HoldsGate()) Keep(ended);
    FinishOnDevice(*ended, std::move(ended->status));
    moved = true;
  }
  return FreeIdleResults() || moved;
}

}  // namespace coordd
