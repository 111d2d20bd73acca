#include "worker/host/host_lane.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr int64_t kAlignmentBytes = 64;

}  // namespace

bool KeptRun::Does(const CollectiveArgs& args) const {
  return kept_ != nullptr && args.kind == kind_ && args.dtype == dtype_ && args.op == op_ &&
         args.root == root_ && args.input.size() == input_bytes_ &&
         args.output.size() == output_bytes_ && args.input_block_bytes == input_block_bytes_ &&
         args.output_block_bytes == output_block_bytes_;
}

void KeptRun::Expect(const CollectiveArgs& args, CollectiveRun& run) {
  Forget();
  if (args.input.size() + args.output.size() > kBytesMax) return;
  kind_ = args.kind;
  dtype_ = args.dtype;
  op_ = args.op;
  root_ = args.root;
  input_bytes_ = args.input.size();
  output_bytes_ = args.output.size();
  input_block_bytes_ = args.input_block_bytes;
  output_block_bytes_ = args.output_block_bytes;
  expected_ = &run;
}

void KeptRun::Keep(std::unique_ptr<LaneRun>& run) {
  if (run == nullptr || run.get() != expected_) return;
  if (run->status().ok()) {
    kept_ = std::move(run);
  } else {
    expected_ = nullptr;
  }
}

std::unique_ptr<LaneRun> KeptRun::Begin(const CollectiveArgs& args, RunMembers members) {
  expected_->Restart(Tag{args.lane, args.sequence}, args.input, args.output, members);
  return std::move(kept_);
}

void KeptRun::Forget() {
  kept_.reset();
  expected_ = nullptr;
}

void HostLane::Put(HostBatch batch) {
  if (spare.empty()) {
    queue.push_back(std::move(batch));
    return;
  }
  spare.front() = std::move(batch);
  queue.splice(queue.end(), spare);
}

void HostLane::RemoveFront() {
  if (!spare.empty()) return queue.pop_front();
  queue.front() = HostBatch{};
  spare.splice(spare.end(), queue, queue.begin());
}

absl::Status HostLane::MakeRoom(int64_t scratch_bytes) {
  if (memory.size_bytes() >= scratch_bytes) return absl::OkStatus();
  kept.Forget();
  memory = AlignedBuffer(scratch_bytes);
  if (memory.size_bytes() >= scratch_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for ", scratch_bytes, " bytes of scratch of a collective"));
}

void HostLane::StartSchedule(const CollectiveArgs& args, const HostGroup& group,
                             Algorithm algorithm, const RunOptions& options, Transport& transport) {
  if (kept.Does(args)) {
    run = kept.Begin(args, group.members);
    return;
  }
  TransferSchedule schedule =
      MakeSchedule(algorithm, args, group.layout.self(), group.layout.size(), &group.grid);
  const int64_t scratch_bytes =
      (schedule.scratch_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  const int64_t segment_bytes = CollectiveRun::SegmentScratchBytes(schedule, options);
  const absl::Status room = MakeRoom(scratch_bytes + segment_bytes);
  RunBuffers buffers{args.input, args.output, {}, {}};
  if (room.ok()) {
    buffers.scratch = memory.span().subspan(0, static_cast<size_t>(schedule.scratch_bytes));
    buffers.segments = memory.span().subspan(static_cast<size_t>(scratch_bytes),
                                             static_cast<size_t>(segment_bytes));
  }
  auto made = std::make_unique<CollectiveRun>(std::move(schedule), args.dtype, args.op,
                                              Tag{args.lane, args.sequence}, buffers, transport,
                                              options, group.members);
  kept.Expect(args, *made);
  if (!room.ok()) made->Fail(room);
  run = std::move(made);
}

void HostLane::EndRun() {
  kept.Keep(run);
  run.reset();  // first: it uses the exchange
  exchange.reset();
}

}  // namespace coordd
