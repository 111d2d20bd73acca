#include "worker/gpu/nccl/hierarchical_allreduce.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/gpu/nccl/nccl_calls.h"

namespace coordd {
namespace {

HierarchyShape ShapeOf(const CollectiveArgs& args, const Hierarchy& how) {
  return {.bytes = static_cast<int64_t>(args.input.size()),
          .element_bytes = SizeOf(args.dtype),
          .ranks_per_node = how.ranks_per_node,
          .chunk_bytes = how.chunk_bytes};
}

}  // namespace

// What is told of the exchanges, on whatever thread.
struct HierarchicalAllreduce::Outcome {
  Mutex mu;
  absl::Status failure ABSL_GUARDED_BY(mu);
};

int64_t HierarchicalAllreduce::SlotBytes(const CollectiveArgs& args, const Hierarchy& how) {
  int64_t bytes = 0;
  // The last slice of a node is its largest; slots are alike on all ranks of it.
  for (const HierarchyChunk& chunk : HierarchyChunks(ShapeOf(args, how)))
    bytes = std::max(bytes, SliceOf(chunk, how.ranks_per_node - 1, how.ranks_per_node).bytes);
  return bytes;
}

absl::StatusOr<std::unique_ptr<HierarchicalAllreduce>> HierarchicalAllreduce::Create(
    HierarchyPlace place, const Hierarchy& how, const CollectiveArgs& args,
    std::shared_ptr<SliceBuffers> slots, int64_t sequence) {
  std::unique_ptr<HierarchicalAllreduce> made(
      new HierarchicalAllreduce(std::move(place), how, args, std::move(slots), sequence));
  while (made->waits_.size() < made->chunks_.size()) {
    COORDD_ASSIGN_OR_RETURN(const size_t wait, made->place_.waits->Take());
    made->waits_.push_back(wait);
  }
  return made;
}

HierarchicalAllreduce::HierarchicalAllreduce(HierarchyPlace place, const Hierarchy& how,
                                             const CollectiveArgs& args,
                                             std::shared_ptr<SliceBuffers> slots, int64_t sequence)
    : place_(std::move(place)),
      how_(how),
      input_(args.input),
      output_(args.output),
      dtype_(args.dtype),
      op_(args.op),
      first_sequence_(sequence),
      slots_(std::move(slots)),
      chunks_(HierarchyChunks(ShapeOf(args, how))),
      steps_(HierarchySteps(chunks_.size())),
      outcome_(std::make_shared<Outcome>()) {}

HierarchicalAllreduce::~HierarchicalAllreduce() = default;

HierarchySlice HierarchicalAllreduce::OwnSlice(size_t chunk) const {
  return SliceOf(chunks_[chunk], place_.node->place().rank, how_.ranks_per_node);
}

absl::Span<std::byte> HierarchicalAllreduce::SlotOf(size_t chunk) const {
  const auto size = static_cast<size_t>(slots_->slot_bytes());
  return slots_->memory.span().subspan(chunk % kHierarchySlots * size,
                                       static_cast<size_t>(OwnSlice(chunk).bytes));
}

absl::Status HierarchicalAllreduce::EnqueueNext() {
  while (!all_enqueued()) {
    const HierarchyCall& step = steps_[next_++];
    switch (step.kind) {
      case HierarchyCall::Kind::kToHost:
        COORDD_RETURN_IF_ERROR(EnqueueToHost(step.chunk));
        break;
      case HierarchyCall::Kind::kFromHost:
        COORDD_RETURN_IF_ERROR(EnqueueFromHost(step.chunk));
        break;
      default:
        return EnqueueCall(step);
    }
  }
  return absl::OkStatus();
}

absl::Status HierarchicalAllreduce::EnqueueCall(const HierarchyCall& step) {
  const HierarchyChunk& chunk = chunks_[step.chunk];
  const int64_t bytes = chunk.slice_bytes * how_.ranks_per_node + chunk.rest_bytes;
  const auto offset = static_cast<size_t>(chunk.offset_bytes);
  NcclRanges slices;
  slices.input = input_.subspan(offset, static_cast<size_t>(bytes));
  slices.output = output_.subspan(offset, static_cast<size_t>(bytes));
  slices.slice_bytes = chunk.slice_bytes;
  slices.dtype = dtype_;
  slices.op = op_;
  const NcclFunctions& nccl = place_.runtime->nccl.functions;
  return step.kind == HierarchyCall::Kind::kReduceScatter
             ? EnqueueReduceToSlices(nccl, *place_.node, slices, place_.stream)
             : EnqueueGatherOfSlices(nccl, *place_.node, slices, place_.stream);
}

absl::Status HierarchicalAllreduce::EnqueueToHost(size_t chunk) {
  const HierarchySlice own = OwnSlice(chunk);
  if (own.bytes == 0) return absl::OkStatus();  // on all who are in this place of their node
  DeviceRuntime& device = *place_.runtime->device;
  const int32_t index = place_.node->place().device;
  const absl::Span<std::byte> slot = SlotOf(chunk);
  COORDD_RETURN_IF_ERROR(CopyAsync(device, index, slot.data(), output_.data() + own.offset_bytes,
                                   own.bytes, place_.stream));
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllreduce;
  args.dtype = dtype_;
  args.op = op_;
  args.lane = how_.lane;
  args.sequence = first_sequence_ + static_cast<int64_t>(chunk);
  args.group = ProcessSetId{ToInt(how_.lane)};
  args.input = args.output = slot;
  // It keeps the memory that it works on, also when this object has ended.
  auto done = [slots = slots_, waits = place_.waits, wait = waits_[chunk], outcome = outcome_,
               calls = place_.calls](const absl::Status& status) {
    if (status.ok()) {
      waits->Open(wait);
    } else {
      MutexLock lock(&outcome->mu);
      outcome->failure.Update(status);
    }
    calls->Ended();
  };
  return place_.calls->After(place_.stream, [launch = how_.exchange, args = std::move(args),
                                             done = std::move(done)] { launch(args, done); });
}

absl::Status HierarchicalAllreduce::EnqueueFromHost(size_t chunk) {
  const HierarchySlice own = OwnSlice(chunk);
  if (own.bytes == 0) return absl::OkStatus();
  COORDD_RETURN_IF_ERROR(place_.kernels->Gate(place_.waits->word(waits_[chunk]), place_.stream));
  return CopyAsync(*place_.runtime->device, place_.node->place().device,
                   output_.data() + own.offset_bytes, SlotOf(chunk).data(), own.bytes,
                   place_.stream);
}

std::optional<absl::Status> HierarchicalAllreduce::failure() const {
  MutexLock lock(&outcome_->mu);
  if (outcome_->failure.ok()) return std::nullopt;
  return outcome_->failure;
}

void HierarchicalAllreduce::ReturnWaits() {
  for (size_t wait : std::exchange(waits_, {})) place_.waits->Return(wait);
}

}  // namespace coordd
