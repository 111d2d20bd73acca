#include "worker/gpu/nccl/nccl_backend.h"

#include <sched.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/machine/build_info.h"
#include "common/protocol/tensor_spec.h"
#include "worker/gpu/nccl/nccl_calls.h"
#include "worker/interfaces/collective_args.h"

namespace coordd {
namespace {

// For the thread that launches a call on NCCL's side. One that takes longer connects ranks first,
// or waits for one.
constexpr absl::Duration kLaunchSpin = absl::Microseconds(200);
constexpr int kLaunchPollsMax = 10'000;  // in that time, whatever the clock says
// Also where a yield takes longer than that: one that gives NCCL's thread the core may have been
// all that was missing.
constexpr int kLaunchPollsMin = 8;

}  // namespace

NcclBackend::NcclBackend(std::shared_ptr<NcclRuntime> runtime, Clock& clock,
                         NcclBackendOptions options)
    : runtime_(std::move(runtime)),
      options_(std::move(options)),
      clock_(clock),
      waits_(std::make_shared<HostWaits>(runtime_, options_.device)),
      calls_(std::make_shared<StreamCalls>(runtime_, options_.device)),
      buffers_(runtime_, options_.device, options_.window),
      hierarchy_buffers_(runtime_, options_.device) {}

NcclBackend::~NcclBackend() {
  if (!watchdog_.started()) return;
  groups_.clear();  // whoever still makes a communicator stops
  const bool running = !enqueued_.empty() || !queue_.empty();
  if (running) watchdog_->Fail(CollectivesAborted());
  PassGate();  // by now the program knows
  if (running) {
    watchdog_->AwaitReleased();
    failed_at_ = absl::InfinitePast();  // longer is not waited
    FailAll();
  }
  watchdog_.End();
  calls_->Stop();
}

bool NcclBackend::Supports(MemoryKind memory, DataType dtype, CollectiveKind kind) const {
  if (memory != MemoryKind::kCuda) return false;
  if (!Reduces(kind)) return true;
  if (IsFloat8(dtype)) {
    return NcclReducesFloat8(runtime_->nccl.version,
                             runtime_->device->identity(options_.device).capability_major);
  }
  return NcclReductionOf(dtype, ReduceOp::kSum).has_value();
}

absl::Status NcclBackend::Connect(const GroupLayout& layout, Store& store, absl::Time) {
  DeviceRuntime& device = *runtime_->device;
  COORDD_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(device, options_.device));
  COORDD_ASSIGN_OR_RETURN(DeviceKernels kernels, DeviceKernels::Load(device, options_.device));
  COORDD_ASSIGN_OR_RETURN(DeviceMemory scratch,
                          DeviceMemory::Allocate(device, options_.device, sizeof(uint32_t)));
  COORDD_ASSIGN_OR_RETURN(gate_,
                          NcclGate::Create(device, clock_, options_.device, options_.gate_limit));
  on_device_.emplace(OnDevice{std::move(stream), std::move(kernels), std::move(scratch)});
  store_ = &store;
  Group all;
  all.rank = ToInt(layout.self());
  all.size = layout.size();
  groups_[ProcessSetId{0}] = std::move(all);
  NcclWatchdogOptions watchdog = options_.watchdog;
  watchdog.gate_limit = options_.gate_limit;
  NcclWatchdogHooks hooks;
  hooks.failing = [calls = calls_] { calls->Release(); };
  // What an aborted kernel leaves would go where exchanges still read, and with them to ranks that
  // know of no failure yet.
  hooks.let_go = [waits = waits_, calls = calls_, &clock = clock_,
                  limit = options_.exchange_limit] {
    if (!calls->AwaitEnded(clock, clock.Now() + limit))
      COORDD_LOG(kWarning, "exchanges between nodes have not ended within ",
                 absl::FormatDuration(limit), " of a failure");
    waits->Release();
  };
  hooks.stream_ended = [gate = gate_.get()] { return gate->Through(); };
  watchdog_.Start(
      std::make_unique<NcclWatchdog>(clock_, gate_->word(), watchdog, std::move(hooks)));
  return absl::OkStatus();
}

absl::Status NcclBackend::DefineGroup(ProcessSetId group, absl::Span<const Rank> ranks) {
  const Group& all = groups_.at(ProcessSetId{0});
  COORDD_RETURN_IF_ERROR(ValidateGroup(group, ranks, Rank{all.rank}, all.size));
  const auto self = std::find(ranks.begin(), ranks.end(), Rank{all.rank});
  Group members;
  members.rank = static_cast<int32_t>(self - ranks.begin());
  members.size = static_cast<int32_t>(ranks.size());
  if (!groups_.emplace(group, std::move(members)).second)
    return absl::InvalidArgumentError(absl::StrCat("group ", ToInt(group), ": exists already"));
  return absl::OkStatus();
}

void NcclBackend::EndGroup(ProcessSetId group) {
  const auto it = groups_.find(group);
  if (it == groups_.end()) return;
  for (Channel* channel : {&it->second.all, &it->second.node})
    if (channel->communicator != nullptr) watchdog_->Retire(std::move(channel->communicator));
  groups_.erase(it);
  program_.EndGroup(group);
}

absl::Status NcclBackend::RegisterMemory(ProcessSetId group, absl::Span<std::byte> memory) {
  Group& members = groups_.at(group);
  program_.Add(group, memory);
  for (Channel* channel : {&members.all, &members.node}) {
    if (channel->communicator != nullptr)
      COORDD_RETURN_IF_ERROR(
          program_.RegisterWith(group, *channel->communicator, &channel->program));
  }
  return absl::OkStatus();
}

void NcclBackend::ReleaseMemory(ProcessSetId group, absl::Span<std::byte> memory,
                                std::function<void()> released) {
  program_.Release(group, memory, std::move(released));
  LetGoOfMemory();
}

void NcclBackend::LetGoOfMemory() {
  const bool failed = watchdog_->failed();  // then communicators end, and all that they know
  if (!program_.releasing() || (!failed && (!enqueued_.empty() || front_pending_))) return;
  program_.LetGo([&](ProcessSetId group, size_t index, absl::Span<std::byte> region) {
    const auto found = groups_.find(group);
    if (failed || found == groups_.end()) return;
    for (Channel* channel : {&found->second.all, &found->second.node}) {
      if (channel->communicator == nullptr || index >= channel->program) continue;
      --channel->program;
      const absl::Status status = channel->communicator->Deregister(region.data());
      if (!status.ok()) watchdog_->Fail(status);
    }
  });
}

void NcclBackend::UseWindow(ProcessSetId group) {
  Channel& all = groups_.at(group).all;
  if (all.communicator == nullptr) all.window.Want(buffers_.window());
}

void NcclBackend::UseDirect(ProcessSetId group) { groups_.at(group).direct = true; }

void NcclBackend::UseShrink(ShrinkPlan plan) { shrink_ = std::move(plan); }

void NcclBackend::Discard(std::unique_ptr<KeptCommunicator> kept) {
  const std::shared_ptr<NcclCommunicator> communicator = kept->Take();
  watchdog_->Watch(communicator);
  watchdog_->Retire(communicator);
}

std::unique_ptr<KeptCommunicator> NcclBackend::TakeKept() {
  NcclWatchdog* const watchdog = watchdog_.get();
  std::shared_ptr<NcclCommunicator> kept = watchdog != nullptr ? watchdog->TakeKept() : nullptr;
  if (kept == nullptr) return nullptr;
  const absl::StatusOr<bool> pending = kept->Pending();
  if (!pending.ok() || *pending || !kept->Deregister().ok()) {
    watchdog->Watch(std::move(kept));  // after a failure: it is aborted
    return nullptr;
  }
  return std::make_unique<KeptCommunicator>(std::move(kept), batches_of_all_.load(), clock_);
}

void NcclBackend::UseHierarchy(ProcessSetId group, Hierarchy how) {
  groups_.at(group).hierarchy = std::move(how);
}

absl::Status NcclBackend::Launch(CollectiveArgs args, Done done) {
  const auto group = groups_.find(args.group);
  if (group == groups_.end())
    return absl::InvalidArgumentError(absl::StrCat("group ", ToInt(args.group), ": not defined"));
  const Group& members = group->second;
  COORDD_RETURN_IF_ERROR(ValidateArgs(args, Rank{members.rank}, members.size));
  if (args.memory != MemoryKind::kCuda || args.device != options_.device) {
    return absl::InvalidArgumentError(absl::StrCat(
        Name(args.kind), ": memory of ", Name(args.memory), " ", args.device, ", expected device ",
        options_.device, ", on which this rank's collectives are"));
  }
  if (!Supports(args.memory, args.dtype, args.kind)) {
    return absl::InvalidArgumentError(absl::StrCat(Name(args.kind), " of ", Name(args.dtype),
                                                   ": NCCL does not reduce that here"));
  }
  if (queue_.size() >= kMaxQueuedBatches) {
    return absl::ResourceExhaustedError(
        absl::StrCat(queue_.size(), " batches wait for device ", options_.device));
  }
  if (queue_.empty() && enqueued_.empty()) watchdog_->SetBusy(true);
  queue_.push_back({std::move(args), std::move(done), nullptr, nullptr});
  MoveFront();  // in the steady state it is on the stream before this returns (AwaitLaunch)
  return absl::OkStatus();
}

bool NcclBackend::Progress() {
  if (queue_.empty() && enqueued_.empty() && !program_.releasing()) return false;
  FailWithExchanges();
  bool moved = CollectEnded();
  LetGoOfMemory();
  if (watchdog_->failed()) {
    moved = FailAll() || moved;
  } else {
    while (MoveFront()) moved = true;
  }
  if (enqueued_.empty() && !front_pending_) watchdog_->SetOnDevice(false);
  if (queue_.empty() && enqueued_.empty()) watchdog_->SetBusy(false);
  return moved;
}

NcclPlace NcclBackend::PlaceOf(const CollectiveArgs& args, const Group& members) const {
  NcclPlace place;
  place.job = options_.job;
  place.group = args.group;
  place.rank = members.rank;
  place.size = members.size;
  if (IsHierarchical(members, args)) {
    place.size = members.hierarchy->ranks_per_node;
    place.rank = members.rank % place.size;
    place.node = members.rank / place.size;
  }
  place.device = options_.device;
  place.device_uuid = runtime_->device->identity(options_.device).uuid;
  place.nccl_version = NcclVersionText(runtime_->nccl.version);
  place.driver_version = runtime_->device->driver_version();
  place.interface = runtime_->interface;
  return place;
}

size_t NcclBackend::EnqueuedWeight() const {
  size_t weight = 0;
  for (const Batch& batch : enqueued_) {
    const int64_t chunks = batch.hierarchical != nullptr ? batch.hierarchical->chunks() : 1;
    weight += static_cast<size_t>(std::max(chunks, int64_t{1}));
  }
  return weight;
}

bool NcclBackend::MoveFront() {
  if (queue_.empty() || EnqueuedWeight() >= MaxEnqueued() || watchdog_->failed()) return false;
  if (program_.releasing() && !front_pending_) return false;  // until the device is through
  Batch& front = queue_.front();
  Group& group = groups_.at(front.args.group);
  Channel& channel = ChannelOf(group, front.args);
  if (channel.communicator == nullptr && !AwaitCommunicator(front.args, group)) return false;
  if (channel.window.wanted() && !AwaitWindow(channel)) return false;
  while (!front.args.windows.empty()) {
    channel.window.Want(front.args.windows.front());
    front.args.windows.erase(front.args.windows.begin());
    if (!AwaitWindow(channel)) return false;
  }
  absl::Status status;
  if (!front_pending_) {
    status = RegisterWith(front.args.group, group, channel);
    watchdog_->SetOnDevice(true);
    if (status.ok()) status = Enqueue(front, group);
  }
  if (status.ok()) {
    front_pending_ = true;
    const absl::StatusOr<bool> through = FinishEnqueuing(front, *channel.communicator);
    if (through.ok() && !*through) return false;
    status = through.status();
  }
  if (!status.ok()) {
    watchdog_->Fail(std::move(status));
    return true;
  }
  front_pending_ = false;
  enqueued_.push_back(std::move(front));
  queue_.pop_front();
  Batch& batch = enqueued_.back();
  if (batch.args.enqueued) batch.args.enqueued(batch.end);
  return true;
}

absl::StatusOr<bool> NcclBackend::FinishEnqueuing(Batch& batch, NcclCommunicator& communicator) {
  while (true) {
    COORDD_ASSIGN_OR_RETURN(const bool pending, AwaitLaunch(batch, communicator));
    if (pending) return false;
    batch.spin_until = absl::InfiniteFuture();
    if (batch.hierarchical == nullptr || batch.hierarchical->all_enqueued()) break;
    COORDD_RETURN_IF_ERROR(batch.hierarchical->EnqueueNext());
  }
  COORDD_RETURN_IF_ERROR(RecordEnd(batch));
  return true;
}

// From 2.23.4 on NCCL launches what non-blocking communicators are given on a thread that it makes
// for each call, or group: some ten microseconds, which nobody sleeps through as fast.
absl::StatusOr<bool> NcclBackend::AwaitLaunch(Batch& batch, NcclCommunicator& communicator) {
  for (int polls = 0; polls < kLaunchPollsMax; ++polls) {
    COORDD_ASSIGN_OR_RETURN(const bool pending, communicator.Pending());
    if (!pending) return false;
    const absl::Time now = clock_.Now();
    batch.spin_until = std::min(batch.spin_until, now + kLaunchSpin);
    if (watchdog_->failed() || (now >= batch.spin_until && polls >= kLaunchPollsMin)) break;
    sched_yield();
  }
  return true;
}

bool NcclBackend::AwaitCommunicator(const CollectiveArgs& args, Group& group) {
  Channel& channel = ChannelOf(group, args);
  const bool of_all = &channel == &groups_.at(ProcessSetId{0}).all;
  if (channel.maker == nullptr) {
    std::optional<ShrinkPlan> shrink;
    if (of_all) shrink = std::exchange(shrink_, std::nullopt);
    CommunicatorMakerOptions how = options_.communicators;
    how.direct = group.direct;
    channel.maker = std::make_unique<CommunicatorMaker>(
        runtime_, PlaceOf(args, group), *store_, clock_, *watchdog_,
        clock_.Now() + options_.init_limit, how, std::move(shrink));
  }
  auto made = channel.maker->Take();
  if (!made.has_value()) return false;
  channel.maker.reset();
  if (!made->ok()) {
    watchdog_->Fail(made->status());
    return false;
  }
  channel.communicator = *std::move(*made);
  if (of_all && CanShrink()) watchdog_->KeepWhenIdle(channel.communicator);
  return true;
}

bool NcclBackend::AwaitWindow(Channel& channel) {
  const absl::StatusOr<bool> is_over =
      channel.window.Advance(*channel.communicator, clock_.Now(), options_.init_limit);
  // The others wait for this rank in it: there is no way on without.
  if (!is_over.ok()) watchdog_->Fail(is_over.status());
  if (!is_over.ok() || !*is_over) return false;
  const std::byte* const made = channel.window.Take().data();
  const bool is_buffer = options_.window != nullptr && made == buffers_.window().data();
  if (is_buffer && channel.communicator->HasWindow(made)) buffers_.NoteWindow(&channel.registered);
  return true;
}

absl::Status NcclBackend::RegisterWith(ProcessSetId id, const Group& group, Channel& channel) {
  if (options_.register_buffers && group.registers)
    buffers_.RegisterWith(*channel.communicator, &channel.registered);
  return program_.RegisterWith(id, *channel.communicator, &channel.program);
}

absl::Status NcclBackend::Enqueue(Batch& batch, Group& group) {
  if (batch.args.ready != nullptr)
    COORDD_RETURN_IF_ERROR(on_device_->stream.Wait(batch.args.ready->get()));
  if (batch.args.before)
    COORDD_RETURN_IF_ERROR(batch.args.before(on_device_->kernels, on_device_->stream.get()));
  if (IsHierarchical(group, batch.args)) return BeginHierarchical(batch, group);
  if (ToInt(batch.args.group) == 0) batches_of_all_.fetch_add(1);
  return EnqueueCollective(runtime_->nccl.functions, *group.all.communicator, batch.args,
                           on_device_->scratch.data(), on_device_->stream.get());
}

absl::Status NcclBackend::BeginHierarchical(Batch& batch, Group& group) {
  const Hierarchy& how = *group.hierarchy;
  const int64_t slot_bytes = HierarchicalAllreduce::SlotBytes(batch.args, how);
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<SliceBuffers> slots,
                          hierarchy_buffers_.SlotsOf(slot_bytes));
  COORDD_ASSIGN_OR_RETURN(
      batch.hierarchical,
      HierarchicalAllreduce::Create({.runtime = runtime_,
                                     .node = group.node.communicator,
                                     .kernels = &on_device_->kernels,
                                     .stream = on_device_->stream.get(),
                                     .calls = calls_,
                                     .waits = waits_},
                                    how, batch.args, std::move(slots), group.exchanges));
  group.exchanges += batch.hierarchical->chunks();
  return absl::OkStatus();
}

absl::Status NcclBackend::RecordEnd(Batch& batch) {
  const CudaStream stream = on_device_->stream.get();
  // What an aborted collective leaves is unpacked too: where it is, only the gate is before it.
  if (batch.args.behind) COORDD_RETURN_IF_ERROR(batch.args.behind(on_device_->kernels, stream));
  COORDD_ASSIGN_OR_RETURN(batch.end, FreshEvent());
  return gate_->Record(stream, *batch.end);
}

absl::StatusOr<std::shared_ptr<DeviceEvent>> NcclBackend::FreshEvent() {
  // One that nobody holds any more is recorded again; few are ever made.
  const auto unused = std::find_if(free_events_.begin(), free_events_.end(),
                                   [](const auto& event) { return event.use_count() == 1; });
  if (unused != free_events_.end()) {
    std::shared_ptr<DeviceEvent> event = std::move(*unused);
    free_events_.erase(unused);
    return event;
  }
  COORDD_ASSIGN_OR_RETURN(DeviceEvent event,
                          DeviceEvent::Create(*runtime_->device, options_.device));
  return std::make_shared<DeviceEvent>(std::move(event));
}

bool NcclBackend::CollectEnded() {
  bool moved = false;
  while (!enqueued_.empty() && enqueued_.front().end != nullptr) {
    const absl::StatusOr<bool> happened = enqueued_.front().end->Happened();
    if (!happened.ok()) watchdog_->Fail(happened.status());
    // What an aborted collective left does not come through the gate before it is let through.
    if (!happened.ok() || !*happened || gate_->passed()) break;
    Batch batch = std::move(enqueued_.front());
    enqueued_.pop_front();
    if (free_events_.size() < kMaxEnqueued) free_events_.push_back(std::move(batch.end));
    if (batch.hierarchical != nullptr) batch.hierarchical->ReturnWaits();
    std::move(batch.done)(absl::OkStatus());
    moved = true;
  }
  return moved;
}

void NcclBackend::FailWithExchanges() {
  auto look = [this](const Batch& batch) {
    if (batch.hierarchical == nullptr || watchdog_->failed()) return;
    const std::optional<absl::Status> failure = batch.hierarchical->failure();
    if (failure.has_value()) watchdog_->Fail(*failure);
  };
  for (const Batch& batch : enqueued_) look(batch);
  if (front_pending_) look(queue_.front());
}

// What a batch that was not enqueued to its end has on the stream has to be through, too, before
// the program goes on.
void NcclBackend::PutBehindGate() {
  const absl::StatusOr<std::shared_ptr<DeviceEvent>> end = FreshEvent();
  if (end.ok()) gate_->Record(on_device_->stream.get(), **end).IgnoreError();
}

bool NcclBackend::FailAll() {
  const absl::Time now = clock_.Now();
  failed_at_ = std::min(failed_at_, now);
  const absl::Status failure = watchdog_->failure();
  if (front_pending_) {  // its end has not been recorded
    if (queue_.front().hierarchical != nullptr) PutBehindGate();
    enqueued_.push_back(std::move(queue_.front()));
    queue_.pop_front();
    front_pending_ = false;
  }
  // Where the gate is held nobody gets at the buffers before PassGate, which waits.
  const bool over =
      watchdog_->released() || gate_->held() || now >= failed_at_ + options_.watchdog.abort_limit;
  std::deque<Batch> ending;
  if (over) ending.swap(enqueued_);
  std::move(queue_.begin(), queue_.end(), std::back_inserter(ending));
  queue_.clear();
  for (Batch& batch : ending) {
    if (batch.hierarchical != nullptr) hierarchy_buffers_.Keep(std::move(batch.hierarchical));
    std::move(batch.done)(failure);
  }
  return !ending.empty();
}

absl::StatusOr<absl::Span<std::byte>> NcclBackend::AllocateFusionBuffer(int64_t size_bytes) {
  return buffers_.Allocate(size_bytes);
}

void NcclBackend::Abort() { watchdog_.Abort(); }

void NcclBackend::PassGate() {
  if (gate_ == nullptr) return;
  NcclWatchdog* const watchdog = watchdog_.get();
  gate_->Open();
  // What could not be revoked is aborted now: only so does it come through.
  if (watchdog != nullptr && !watchdog->released()) watchdog->GatePassed();
  gate_->Pass();
  if (watchdog != nullptr) watchdog->GatePassed();
}

}  // namespace coordd
