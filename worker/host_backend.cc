#include "worker/host_backend.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "worker/collective_args.h"

namespace coordd {
namespace {

absl::Status AbortedStatus() {
  return absl::AbortedError("the generation's collectives were aborted");
}

}  // namespace

HostBackend::HostBackend(std::unique_ptr<Transport> transport, HostBackendOptions options)
    : options_(options), transport_(std::move(transport)) {}

HostBackend::~HostBackend() {
  // The transport lets go of the buffers first: it ends its operations, which the runs hear.
  transport_.reset();
  if (failure_.ok()) failure_ = AbortedStatus();
  for (auto& [id, lane] : lanes_) {
    for (Batch& batch : lane.queue) std::move(batch.done)(failure_);
  }
}

bool HostBackend::Supports(MemoryKind memory, DataType, CollectiveKind) const {
  return memory == MemoryKind::kHost;
}

absl::Status HostBackend::Connect(const GroupLayout& layout, Store& store, absl::Time deadline) {
  COORDD_RETURN_IF_ERROR(transport_->Connect(layout, store, deadline));
  groups_.emplace(ProcessSetId{0}, Group{layout, {}});
  return absl::OkStatus();
}

absl::Status HostBackend::DefineGroup(ProcessSetId group, absl::Span<const Rank> ranks) {
  COORDD_CHECK(!groups_.empty());  // Connect comes first
  const GroupLayout& all = groups_.at(ProcessSetId{0}).layout;
  COORDD_RETURN_IF_ERROR(ValidateGroup(group, ranks, all.self(), all.size()));
  Group made{all.Subgroup(ranks), std::vector<Rank>(ranks.begin(), ranks.end())};
  if (groups_.emplace(group, std::move(made)).second) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("group ", ToInt(group), " is defined already, expected a new number"));
}

void HostBackend::EndGroup(ProcessSetId group) {
  COORDD_CHECK(ToInt(group) != 0);
  EndLane(LaneId{ToInt(group)});
  groups_.erase(group);
}

void HostBackend::EndLane(LaneId id) {
  const auto lane = lanes_.find(id);
  if (lane == lanes_.end()) return;
  COORDD_CHECK(lane->second.queue.empty());
  lanes_.erase(lane);
}

absl::Status HostBackend::Launch(CollectiveArgs args, Done done) {
  COORDD_CHECK(!groups_.empty());  // Connect comes first
  const auto group = groups_.find(args.group);
  if (group == groups_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(args.kind), ": group ", ToInt(args.group), " is not defined"));
  }
  const GroupLayout& layout = group->second.layout;
  COORDD_RETURN_IF_ERROR(ValidateArgs(args, layout.self(), layout.size()));
  Lane& lane = lanes_[args.lane];
  if (lane.queue.size() >= kMaxQueuedBatches) {
    return absl::ResourceExhaustedError(
        absl::StrCat("lane ", ToInt(args.lane), " has ", lane.queue.size(), " batches waiting"));
  }
  lane.queue.push_back({std::move(args), &group->second, std::move(done)});
  return absl::OkStatus();
}

bool HostBackend::Progress() {
  bool moved = transport_->Progress();
  if (aborted_.load(std::memory_order_acquire)) FailAll(AbortedStatus());
  Finished finished;
  for (auto& [id, lane] : lanes_) moved |= AdvanceLane(lane, finished);
  // Last, because a `done` may Launch.
  for (auto& [done, status] : finished) std::move(done)(std::move(status));
  return moved;
}

absl::StatusOr<absl::Span<std::byte>> HostBackend::AllocateFusionBuffer(int64_t size_bytes) {
  AlignedBuffer buffer(size_bytes);
  if (buffer.data() == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a fusion buffer of ", size_bytes, " bytes"));
  }
  fusion_buffers_.push_back(std::move(buffer));
  return fusion_buffers_.back().span();
}

void HostBackend::Abort() {
  aborted_.store(true, std::memory_order_release);
  transport_->Abort();
}

void HostBackend::StartRun(Lane& lane) {
  const CollectiveArgs& args = lane.queue.front().args;
  const Group& group = *lane.queue.front().group;
  const int32_t size = group.layout.size();
  Algorithm algorithm = ChooseAlgorithm(args.kind, static_cast<int64_t>(args.input.size()), size);
  if (args.kind == CollectiveKind::kAllreduce && options_.allreduce && size > 1)
    algorithm = *options_.allreduce;
  Schedule schedule = MakeSchedule(algorithm, args, group.layout.self(), size);
  const int64_t scratch_bytes = (schedule.scratch_bytes + 63) / 64 * 64;
  const int64_t segment_bytes = CollectiveRun::SegmentScratchBytes(schedule, options_.run);
  if (lane.memory.size_bytes() < scratch_bytes + segment_bytes)
    lane.memory = AlignedBuffer(scratch_bytes + segment_bytes);
  const absl::Span<std::byte> memory = lane.memory.span();
  RunBuffers buffers{args.input, args.output, {}, {}};
  const bool enough = static_cast<int64_t>(memory.size()) >= scratch_bytes + segment_bytes;
  if (enough) {
    buffers.scratch = memory.subspan(0, static_cast<size_t>(schedule.scratch_bytes));
    buffers.segments =
        memory.subspan(static_cast<size_t>(scratch_bytes), static_cast<size_t>(segment_bytes));
  }
  lane.run = std::make_unique<CollectiveRun>(std::move(schedule), args.dtype, args.op,
                                             Tag{args.lane, args.sequence}, buffers, *transport_,
                                             options_.run, group.members);
  if (!enough) {
    lane.run->Fail(absl::ResourceExhaustedError(absl::StrCat(
        "no memory for ", scratch_bytes + segment_bytes, " bytes of scratch of a collective")));
  }
}

bool HostBackend::AdvanceLane(Lane& lane, Finished& finished) {
  bool moved = false;
  while (!lane.queue.empty()) {
    if (lane.run == nullptr && failure_.ok()) StartRun(lane);
    if (lane.run != nullptr) {
      moved |= lane.run->Advance();
      if (!lane.run->status().ok()) FailAll(lane.run->status());
      if (!lane.run->finished()) break;
    }
    const bool succeeded = lane.run != nullptr && lane.run->status().ok();
    finished.emplace_back(std::move(lane.queue.front().done),
                          succeeded ? absl::OkStatus() : failure_);
    lane.run.reset();
    lane.queue.pop_front();
    moved = true;
  }
  return moved;
}

void HostBackend::FailAll(absl::Status status) {
  if (!failure_.ok()) return;
  failure_ = std::move(status);
  transport_->Abort();
  for (auto& [id, lane] : lanes_) {
    if (lane.run != nullptr) lane.run->Fail(failure_);
  }
}

}  // namespace coordd
