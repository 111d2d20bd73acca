#include "worker/host/alltoall_run.h"

#include <utility>
#include <vector>

#include "worker/algorithms/pairwise_schedule.h"

namespace coordd {
namespace {

// Whose blocks go over the transport.
TransferSchedule ScheduleAcross(const CollectiveArgs& args, NodeRanks node, Rank self, bool alone) {
  std::vector<ByteRange> input = RangesOf(args.input_block_bytes);
  std::vector<ByteRange> output = RangesOf(args.output_block_bytes);
  for (int32_t i = 0; !alone && i < node.count; ++i) {
    const size_t rank = static_cast<size_t>(node.first + i);
    input[rank].size_bytes = output[rank].size_bytes = 0;
  }
  return PairwiseAlltoall(self, input, output);
}

// The blocks of a node's members: a part of the buffer and of the sizes.
absl::Span<const int64_t> SizesOf(const std::vector<int64_t>& sizes, NodeRanks node) {
  return absl::MakeConstSpan(sizes).subspan(static_cast<size_t>(node.first),
                                            static_cast<size_t>(node.count));
}

ByteRange PartOf(const std::vector<int64_t>& sizes, NodeRanks node) {
  const std::vector<ByteRange> ranges = RangesOf(sizes);
  return Hull(absl::MakeConstSpan(ranges).subspan(static_cast<size_t>(node.first),
                                                  static_cast<size_t>(node.count)));
}

}  // namespace

CollectiveArgs AlltoallRun::Within(const CollectiveArgs& args, NodeRanks node) {
  CollectiveArgs within;
  within.kind = args.kind;
  within.dtype = args.dtype;
  within.sequence = args.sequence;
  within.equal_blocks = args.equal_blocks;
  const ByteRange input = PartOf(args.input_block_bytes, node);
  const ByteRange output = PartOf(args.output_block_bytes, node);
  within.input = args.input.subspan(static_cast<size_t>(input.offset_bytes),
                                    static_cast<size_t>(input.size_bytes));
  within.output = args.output.subspan(static_cast<size_t>(output.offset_bytes),
                                      static_cast<size_t>(output.size_bytes));
  const absl::Span<const int64_t> to = SizesOf(args.input_block_bytes, node);
  const absl::Span<const int64_t> from = SizesOf(args.output_block_bytes, node);
  within.input_block_bytes.assign(to.begin(), to.end());
  within.output_block_bytes.assign(from.begin(), from.end());
  return within;
}

AlltoallRun::AlltoallRun(const CollectiveArgs& args, NodeRanks node, Rank self, NodeLane* lane,
                         absl::Span<std::byte> staging, const NodeRunOptions& node_options,
                         RunOptions options, Transport& transport, RunMembers members)
    : within_args_(Within(args, node)),
      across_(ScheduleAcross(args, node, self, lane == nullptr), args.dtype, args.op,
              Tag{args.lane, args.sequence}, RunBuffers{args.input, args.output, {}, {}}, transport,
              options, members) {
  if (lane != nullptr) within_.emplace(within_args_, *lane, staging, node_options);
}

bool AlltoallRun::Advance() {
  if (!status_.ok()) return false;
  // Messages first: they travel while blocks are copied.
  bool moved = across_.Advance();
  if (!across_.status().ok()) Fail(across_.status());
  if (!status_.ok() || !within_.has_value()) return moved;
  moved |= within_->Advance();
  if (!within_->status().ok()) Fail(within_->status());
  return moved;
}

void AlltoallRun::Fail(absl::Status status) {
  if (!status_.ok() || status.ok()) return;
  status_ = std::move(status);
  across_.Fail(status_);
  if (within_.has_value()) within_->Fail(status_);
}

}  // namespace coordd
