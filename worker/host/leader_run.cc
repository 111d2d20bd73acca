#include "worker/host/leader_run.h"

#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/protocol/tensor_spec.h"
#include "worker/algorithms/recursive_schedule.h"
#include "worker/algorithms/ring_schedule.h"
#include "worker/algorithms/rooted_schedule.h"
#include "worker/algorithms/tree_schedule.h"
#include "worker/base/copy_bytes.h"
#include "worker/numeric/reduce_kernels.h"

namespace coordd {
namespace {

int64_t RoundedUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

bool LeaderRun::Fits(const CollectiveArgs& args, int64_t inline_bytes_max) {
  switch (args.kind) {
    case CollectiveKind::kBarrier:
      return true;
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kBroadcast:
      return SizeOf(NodeInputOf(args)) <= inline_bytes_max;
    case CollectiveKind::kAllgather:
      return SizeOf(args.output) <= inline_bytes_max;  // which a leader gives to its node
    default:
      return false;
  }
}

LeaderRun::LeaderRun(const CollectiveArgs& args, NodeLane* lane, NodeLeaders leaders,
                     RunOptions options, Transport& transport)
    : args_(args),
      lane_(lane),
      leaders_(std::move(leaders)),
      options_(options),
      transport_(transport),
      scale_(NodeScaleOf(args)) {
  if (!is_leader()) return;
  schedule_ = MakeSchedule();
  // The node's sum, where its leader has no output for it.
  const bool keeps = args.kind == CollectiveKind::kReduce && leaders_.node != leaders_.root_node;
  if (keeps && lane_ != nullptr) partial_bytes_ = RoundedUp(SizeOf(args.input));
  schedule_bytes_ = RoundedUp(schedule_.scratch_bytes);
  segment_bytes_ = RoundedUp(CollectiveRun::SegmentScratchBytes(schedule_, options_));
}

// In the output of an allgather: the blocks of a node's members, which follow each other.
ByteRange LeaderRun::PartOf(int32_t node) const {
  const auto first =
      args_.output_block_bytes.begin() +
      std::accumulate(leaders_.members.begin(), leaders_.members.begin() + node, int64_t{0});
  const auto end = first + leaders_.members[static_cast<size_t>(node)];
  return {std::accumulate(args_.output_block_bytes.begin(), first, int64_t{0}),
          std::accumulate(first, end, int64_t{0})};
}

TransferSchedule LeaderRun::MakeSchedule() const {
  const Rank self{leaders_.node};
  const Rank root{leaders_.root_node};
  const int32_t nodes = static_cast<int32_t>(leaders_.ranks.size());
  switch (args_.kind) {
    case CollectiveKind::kAllreduce:
      return RecursiveDoublingAllreduce(self, nodes, SizeOf(args_.input),
                                        coordd::SizeOf(args_.dtype));
    case CollectiveKind::kReduce:
      return BinomialReduce(self, nodes, root, SizeOf(args_.input));
    case CollectiveKind::kBroadcast:
      return BinomialBroadcast(self, nodes, root, SizeOf(args_.output));
    case CollectiveKind::kAllgather: {
      std::vector<ByteRange> parts;
      for (int32_t node = 0; node < nodes; ++node) parts.push_back(PartOf(node));
      return RingAllgather(self, parts);
    }
    default:
      COORDD_CHECK(args_.kind == CollectiveKind::kBarrier);
      return DisseminationBarrier(self, nodes);
  }
}

void LeaderRun::Begin(absl::Span<std::byte> scratch) {
  scratch_ = scratch;
  const bool broadcast = args_.kind == CollectiveKind::kBroadcast;
  if (!broadcast && lane_ != nullptr) return BeginGathering();
  if (is_leader()) BeginAcross();
  // The root's node has it already.
  if (lane_ != nullptr && (!is_leader() || leaders_.node == leaders_.root_node)) BeginGiving();
}

void LeaderRun::BeginGathering() {
  gathers_ = true;
  inside_args_.root = Rank{leaders_.leader};
  inside_args_.input = args_.input;
  if (args_.kind == CollectiveKind::kAllgather) {
    const ByteRange part = PartOf(leaders_.node);
    const auto first = args_.output_block_bytes.begin() +
                       std::accumulate(leaders_.members.begin(),
                                       leaders_.members.begin() + leaders_.node, int64_t{0});
    inside_args_.kind = CollectiveKind::kAllgather;
    inside_args_.output_block_bytes.assign(first, first + lane_->size());
    inside_args_.output = args_.output.subspan(static_cast<size_t>(part.offset_bytes),
                                               static_cast<size_t>(part.size_bytes));
  } else {
    // Of a barrier, the sum of nothing: the leader hears of all.
    const bool reduces = args_.kind != CollectiveKind::kBarrier;
    inside_args_.kind = CollectiveKind::kReduce;
    inside_args_.dtype = args_.dtype;
    inside_args_.op = reduces ? args_.op : ReduceOp::kSum;
    if (is_leader()) {
      inside_args_.output = partial_bytes_ > 0 ? scratch_.first(args_.input.size()) : args_.output;
    }
  }
  inside_.emplace(inside_args_, *lane_);
}

void LeaderRun::BeginAcross() {
  const absl::Span<std::byte> own =
      scratch_.subspan(static_cast<size_t>(partial_bytes_), static_cast<size_t>(schedule_bytes_));
  RunBuffers buffers{args_.input, args_.output, own, {}};
  buffers.segments = scratch_.subspan(static_cast<size_t>(partial_bytes_ + schedule_bytes_),
                                      static_cast<size_t>(segment_bytes_));
  // What the node has made takes the input's place.
  if (gathers_) buffers.input = inside_args_.output;
  across_.emplace(std::move(schedule_), args_.dtype, args_.op, Tag{args_.lane, args_.sequence},
                  buffers, transport_, options_, leaders_.ranks);
}

void LeaderRun::BeginGiving() {
  gathers_ = false;
  inside_args_ = CollectiveArgs();
  inside_args_.kind = CollectiveKind::kBroadcast;
  inside_args_.root = Rank{leaders_.leader};
  inside_args_.output = args_.output;
  inside_.emplace(inside_args_, *lane_);
}

bool LeaderRun::Advance() {
  bool moved = false;
  for (bool goes_on = true; goes_on && !finished();) {
    goes_on = across_.has_value() && AdvanceAcross();
    if (status_.ok() && inside_.has_value()) goes_on |= AdvanceInside();
    moved |= goes_on;
  }
  return moved;
}

bool LeaderRun::AdvanceInside() {
  const bool moved = inside_->Advance();
  if (!inside_->finished()) return moved;
  inside_.reset();
  if (!gathers_) return true;
  if (is_leader()) {
    BeginAcross();
  } else if (args_.kind != CollectiveKind::kReduce) {
    BeginGiving();
  }
  return true;
}

bool LeaderRun::AdvanceAcross() {
  const bool moved = across_->Advance();
  if (!across_->status().ok()) Fail(across_->status());
  if (!status_.ok() || !across_->finished()) return moved;
  across_.reset();
  if (scale_ != 1.0 && !args_.output.empty()) {
    Scale(args_.dtype, scale_, args_.output.data(),
          SizeOf(args_.output) / coordd::SizeOf(args_.dtype));
  }
  const bool given =
      args_.kind == CollectiveKind::kBroadcast && leaders_.node == leaders_.root_node;
  if (lane_ != nullptr && !given && args_.kind != CollectiveKind::kReduce) BeginGiving();
  return true;
}

void LeaderRun::Fail(absl::Status status) {
  if (!status_.ok() || status.ok()) return;
  status_ = std::move(status);
  if (across_.has_value()) across_->Fail(status_);
}

}  // namespace coordd
