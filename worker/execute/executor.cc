#include "worker/execute/executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/interfaces/idle_wait.h"
#include "worker/interfaces/lanes.h"

namespace coordd {
namespace {

// Padding between the tensors of a batch of at most fusion_buffer_bytes: 16,384 tensors' worth.
constexpr int64_t kPaddingBytes = int64_t{1} << 20;

}  // namespace

Executor::Executor(ExecutorOptions options, std::unique_ptr<CollectiveBackend> backend,
                   Clock& clock, Finished finished)
    : options_(options),
      backend_name_(backend->name().data(), backend->name().size()),
      arena_(backend->arena()),
      finished_(std::move(finished)),
      clock_(clock),
      seat_owner_(std::make_shared<DriverSeat>([this](const Work& waiter, absl::Time deadline) {
        seat_.AssertHeld();
        DriveFor(waiter, deadline);
      })),
      seat_(*seat_owner_),
      backend_(std::move(backend)),
      inbox_(kInboxCapacity, clock),
      buffers_(options.fusion_buffer_bytes + kPaddingBytes, kFusionBuffers) {}

Executor::~Executor() { Stop(); }

absl::Status Executor::Start(GroupLayout layout, Store& store, absl::Time deadline) {
  StartConnecting(std::move(layout), store, deadline,
                  [this](const absl::Status& connected) { connect_result_.Set(connected); });
  return connect_result_.Await();  // Connect has the deadline
}

void Executor::StartConnecting(GroupLayout layout, Store& store, absl::Time deadline,
                               Connected connected) {
  thread_ = StartThread(
      "executor", [this, layout = std::move(layout), &store, deadline,
                   connected = std::move(connected)] { Run(layout, store, deadline, connected); });
}

void Executor::Launch(std::unique_ptr<BatchJob> batch) {
  batches_.fetch_add(1, std::memory_order_relaxed);
  // Kept alive: the batch may end, and its caller go, before this thread is through here.
  std::shared_ptr<Work> work;
  if (batch->tensors().size() == 1) work = batch->tensors().front().work;
  Input input = std::move(batch);
  if (!inbox_.PushUnbounded(std::move(input))) {
    return HandOver(std::move(std::get<std::unique_ptr<BatchJob>>(input)),
                    absl::AbortedError("the data plane has stopped"));
  }
  // Who waits since an older generation would come to the seat of that one.
  const bool waited_for = work != nullptr && work->seat() == &seat_ && work->has_waiter();
  CallDriver(waited_for);
  if (waited_for && !work->NudgeWaiter()) seat_.Decline();
}

template <typename T>
void Executor::Put(T input) {
  if (inbox_.PushUnbounded(std::move(input))) CallDriver();
}

void Executor::ReturnScratch(LaneId lane, ScratchLoan loan) { Put(ScratchReturned{lane, loan}); }

void Executor::DefineGroup(ProcessSetId process_set, RankList ranks) {
  Put(GroupDefined{process_set, std::move(ranks)});
}

void Executor::EndGroup(ProcessSetId process_set) { Put(GroupEnded{process_set}); }

void Executor::EndLane(LaneId lane) { Put(LaneEnded{lane}); }

void Executor::CallDriver(bool waiter_comes) {
  seat_.Call(waiter_comes);
  // Who sits there may sleep.
  Doorbell* const bell = wakes_.own_bell.load(std::memory_order_acquire);
  if (bell != nullptr) bell->Ring();
  wakes_.alarm.Ring();
}

void Executor::RingComms() {
  if (wakes_.own_bell.load(std::memory_order_acquire) != nullptr) arena_->own_board().RingAll();
}

void Executor::LeaveComms() {
  if (wakes_.own_bell.load(std::memory_order_acquire) != nullptr) arena_->own_board().Leave();
}

bool Executor::WaitForMore(IdleWait& wait) {
  if (!wait.sleeps_next()) return wait.Wait();
  BellUse use = backend_->Bell();
  use.alarm = &wakes_.alarm;
  return wait.Wait(use);
}

void Executor::Abort() {
  aborted_.store(true, std::memory_order_release);
  backend_->Abort();
  // What waits for scratch memory, which interrupted batches may hold, has nobody to end it else.
  CallDriver();
}

void Executor::Stop() {
  if (!thread_.joinable()) return;
  Abort();
  inbox_.Close();
  stopping_.store(true, std::memory_order_release);
  CallDriver();
  thread_.join();
}

void Executor::Run(const GroupLayout& layout, Store& store, absl::Time deadline,
                   const Connected& connected) {
  seat_.AdoptAtStart();
  const absl::Status status = backend_->Connect(layout, store, deadline);
  if (!status.ok()) Abort();
  if (status.ok() && arena() != nullptr)
    wakes_.own_bell.store(&arena_->own_board().bell(), std::memory_order_release);
  connected(status);
  while (true) {
    DriveUntilIdle();
    if (lanes_.to_launch() == 0 && inbox_.Finished()) break;
    seat_.Leave(/*more=*/false);
    seat_.Await();
  }
  // The rest of their groups has not come.
  lanes_.ForEach([this](ExecutorLane& lane) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    FinishConfirmed(lane, absl::AbortedError("the data plane was stopped"));
  });
  // Where it lived. Stop, which waits for this thread, was the last to call Abort.
  backend_.reset();
  seat_.KeepForEver();
}

void Executor::DriveUntilIdle() {
  IdleWait wait(options_.polling_threads, options_.cores);
  while (true) {
    if (Sweep()) {
      wait.Reset();
    } else if (idle()) {
      return;
    } else {
      WaitForMore(wait);
    }
  }
}

void Executor::DriveFor(const Work& waiter, absl::Time deadline) noexcept {
  waiter_ = &waiter;
  IdleWait wait(options_.polling_threads, options_.cores);
  while (!waiter.done()) {
    if (Sweep()) {
      wait.Reset();
    } else if (idle()) {
      break;  // what it waits for is elsewhere: not planned, or with the control thread
    } else if (WaitForMore(wait) && clock_.Now() >= deadline) {
      break;
    }
  }
  waiter_ = nullptr;
  wait.Reset();  // the bell is the next one's
  LeaveSeat();
}

void Executor::LeaveSeat() {
  const bool more = LeavesSomething();
  const bool others = at_backend_.direct_runs > at_backend_.messages ||
                      !at_backend_.batches.empty() || lanes_.to_launch() > 0 ||
                      lanes_.has_ended() || stopping_.load(std::memory_order_acquire);
  if (more && !others) return seat_.LeaveToWaiter();
  seat_.Leave(more);
}

// Its own end is something for the executor's thread to do, too.
bool Executor::LeavesSomething() const {
  return !idle() || lanes_.to_launch() > 0 || lanes_.has_ended() ||
         stopping_.load(std::memory_order_acquire);
}

bool Executor::Sweep() {
  if (seat_.TakeCall()) TakeInputs();
  bool moved = LaunchReady();
  if (!idle()) {
    moved = backend_->Progress() || moved;
    moved = CollectFinished() || moved;
  }
  if (lanes_.has_ended()) EndIdleLanes();
  return moved;
}

void Executor::TakeInputs() {
  // The analysis does not see through std::visit that the seat is held.
  auto take = [this](auto& in) ABSL_NO_THREAD_SAFETY_ANALYSIS { Take(in); };
  inbox_.TakeAll(absl::InfinitePast(), inputs_);
  for (Input& input : inputs_) std::visit(take, input);
  inputs_.clear();
}

void Executor::Take(std::unique_ptr<BatchJob>& batch) { lanes_.Push(std::move(batch)); }

void Executor::Take(ScratchReturned& returned) {
  if (returned.loan.fusion_buffer >= 0) buffers_.Return(returned.loan.fusion_buffer);
  // The lane may have ended in the meantime.
  if (ExecutorLane* const lane = lanes_.Find(returned.lane)) --lane->scratch_held;
}

void Executor::Take(GroupDefined& defined) {
  if (aborted_.load(std::memory_order_acquire)) return;  // nothing of it will be launched
  std::vector<Rank> ranks;
  for (int32_t rank : *defined.ranks) ranks.push_back(Rank{rank});
  // What coordd says about sets is checked by WorkerState.
  COORDD_CHECK(backend_->DefineGroup(defined.process_set, ranks).ok());
}

void Executor::Take(GroupEnded& ended) {
  lanes_.End(LaneId{ToInt(ended.process_set)});
  const LaneId of_devices = DeviceLane(ended.process_set);
  if (lanes_.Find(of_devices) != nullptr) lanes_.End(of_devices);
}

void Executor::Take(LaneEnded& ended) { lanes_.End(ended.lane); }

void Executor::EndIdleLanes() {
  lanes_.ForgetIdle([this](LaneId lane) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (ToInt(lane) < kFirstScheduleLane) {
      backend_->EndGroup(ProcessSetId{ToInt(lane)});
    } else {
      backend_->EndLane(lane);
    }
  });
}

bool Executor::LaunchReady() {
  return lanes_.Serve([this](ExecutorLane& lane)
                          ABSL_NO_THREAD_SAFETY_ANALYSIS { return LaunchNext(lane); });
}

bool Executor::LaunchNext(ExecutorLane& lane) {
  // What waits for its sizes is launched in full before anything behind it.
  if (!lane.has_next() || lane.sizing || lane.in_flight >= kMaxBatchesInFlight) return false;
  const bool sized = lane.sized != nullptr;
  std::unique_ptr<BatchJob>& next = sized ? lane.sized : lane.waiting.front();
  if (aborted_.load(std::memory_order_acquire)) {
    FinishNext(lane, std::move(next), absl::AbortedError("the data plane was stopped"));
  } else if (!sized && next->NeedsSizes()) {
    CollectiveArgs args = next->SizeExchange();
    next->times.started = next->times.launched = clock_.Now();
    LaunchArgs(lane, std::move(next), Stage::kSizes, std::move(args));
  } else if (!LaunchPayload(lane, next)) {
    return false;
  }
  lanes_.PopNext(lane, sized);
  return true;
}

bool Executor::LaunchPayload(ExecutorLane& lane, std::unique_ptr<BatchJob>& batch) {
  const absl::Status prepared = batch->Prepare();
  if (!prepared.ok()) {
    FinishNext(lane, std::move(batch), prepared);
    return true;
  }
  if (batch->CanUseParts() &&
      backend_->TakesParts(batch->kind(), batch->process_set(), batch->FlatBytes()))
    batch->UseParts();
  absl::StatusOr<std::optional<absl::Span<std::byte>>> scratch = ScratchFor(lane, *batch);
  if (!scratch.ok()) {
    FinishNext(lane, std::move(batch), scratch.status());
    return true;
  }
  if (!scratch->has_value()) return false;
  // One tensor by itself is not packed.
  const bool packs = batch->ScratchBytes() > 0 && !batch->NeedsSizes();
  if (packs) batch->times.started = clock_.Now();
  CollectiveArgs args = batch->Payload(**scratch);
  if (!batch->NeedsSizes()) batch->times.launched = clock_.Now();
  if (!packs && !batch->NeedsSizes()) batch->times.started = batch->times.launched;
  LaunchArgs(lane, std::move(batch), Stage::kPayload, std::move(args));
  return true;
}

void Executor::LaunchArgs(ExecutorLane& lane, std::unique_ptr<BatchJob> batch, Stage stage,
                          CollectiveArgs args) {
  auto entry = std::make_unique<InFlight>();
  entry->batch = std::move(batch);
  entry->stage = stage;
  if (options_.names_elements && stage == Stage::kPayload) {
    args.element_at = [job = entry->batch.get()](int64_t offset) { return job->ElementAt(offset); };
  }
  const bool confirm = options_.confirm && stage == Stage::kPayload;
  CollectiveArgs barrier;
  if (confirm) {
    barrier.kind = CollectiveKind::kBarrier;
    barrier.lane = args.lane;
    barrier.sequence = args.sequence;
    barrier.group = args.group;
  }
  if (!LaunchPart(*entry, std::move(args), stage == Stage::kPayload)) {
    FinishNext(lane, std::move(entry->batch), entry->status);
    return;
  }
  // Right behind it: all ranks have the same order on the lane.
  if (confirm) LaunchPart(*entry, std::move(barrier), /*is_payload=*/false);
  ++lane.in_flight;
  lane.sizing = stage == Stage::kSizes;
  at_backend_.batches.push_back(std::move(entry));
}

bool Executor::LaunchPart(InFlight& entry, CollectiveArgs args, bool is_payload) {
  InFlight* raw = &entry;
  ++raw->open;
  if (is_payload) args.algorithm = &raw->batch->algorithm;
  const absl::Status launched =
      backend_->Launch(std::move(args), [raw, is_payload](absl::Status status) {
        --raw->open;
        if (is_payload && status.ok()) raw->batch->has_result = true;
        if (raw->status.ok()) raw->status = std::move(status);
      });
  if (launched.ok()) return true;
  --raw->open;
  raw->status = launched;
  return false;
}

bool Executor::CollectFinished() {
  bool moved = false;
  for (auto it = at_backend_.batches.begin(); it != at_backend_.batches.end();) {
    InFlight& entry = **it;
    if (entry.open > 0) {
      ++it;
      continue;
    }
    moved = true;
    ExecutorLane& lane = lanes_.At(entry.batch->data_lane());
    --lane.in_flight;
    if (entry.stage == Stage::kSizes) lane.sizing = false;
    if (entry.stage == Stage::kSizes && entry.status.ok() && !entry.batch->sizes_only) {
      lanes_.PushSized(lane, std::move(entry.batch));
    } else {
      FinishNext(lane, std::move(entry.batch), std::move(entry.status));
    }
    it = at_backend_.batches.erase(it);
  }
  return moved;
}

absl::StatusOr<std::optional<absl::Span<std::byte>>> Executor::ScratchFor(ExecutorLane& lane,
                                                                          BatchJob& batch) {
  const int64_t bytes = batch.ScratchBytes();
  if (bytes == 0) return absl::Span<std::byte>();
  const bool fits = bytes <= buffers_.buffer_bytes();
  if (fits) {
    COORDD_ASSIGN_OR_RETURN(const int taken, buffers_.Take(*backend_));
    if (taken != FusionBufferPool::kNone) {
      batch.scratch = ScratchLoan{taken};
      ++lane.scratch_held;
      return buffers_.At(taken);
    }
  }
  // What an allgather collects can be larger than what each rank gives, and than any buffer. For
  // what would fit, a lane waits while something of its own is to come back, unless that waits for
  // this batch.
  if (fits && lane.scratch_held > 0 && lane.confirmed.empty())
    return std::optional<absl::Span<std::byte>>();
  COORDD_ASSIGN_OR_RETURN(absl::Span<std::byte> own, OwnScratch(batch));
  ++lane.scratch_held;
  return own;
}

absl::StatusOr<absl::Span<std::byte>> Executor::OwnScratch(BatchJob& batch) {
  batch.own_scratch = AlignedBuffer(batch.ScratchBytes());
  if (batch.own_scratch.data() == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", batch.ScratchBytes(),
                                                     " bytes to fuse ", batch.tensors().size(),
                                                     " tensors in"));
  }
  batch.scratch = ScratchLoan{};
  return batch.own_scratch.span();
}

// A program must not have half of a group while the other half is reduced over other members.
void Executor::FinishNext(ExecutorLane& lane, std::unique_ptr<BatchJob> batch,
                          absl::Status status) {
  if (!options_.confirm) return Finish(std::move(batch), std::move(status));
  const bool whole = lane.open_groups.Take(batch->tensors());
  if (status.ok() && !whole) {
    if (!aborted_.load(std::memory_order_acquire)) {
      lane.confirmed.push_back(std::move(batch));
      return;
    }
    status = absl::AbortedError("the data plane was stopped");
  }
  FinishConfirmed(lane, status);
  Finish(std::move(batch), std::move(status));
}

void Executor::FinishConfirmed(ExecutorLane& lane, const absl::Status& status) {
  for (std::unique_ptr<BatchJob>& batch : std::exchange(lane.confirmed, {}))
    Finish(std::move(batch), status);
}

void Executor::Finish(std::unique_ptr<BatchJob> batch, absl::Status status) {
  batch->times.ended = clock_.Now();
  batch->for_this_thread = waiter_ != nullptr && batch->tensors().size() == 1 &&
                           batch->tensors().front().work.get() == waiter_;
  HandOver(std::move(batch), std::move(status));
}

void Executor::HandOver(std::unique_ptr<BatchJob> batch, absl::Status status) {
  batches_.fetch_sub(1, std::memory_order_relaxed);
  batch->status = std::move(status);
  finished_(std::move(batch));
}

}  // namespace coordd
