#include "worker/node_plan.h"

#include <algorithm>

#include "common/check.h"

namespace coordd {
namespace {

// Of a staged broadcast, where buffers and the smallest piece allow it.
constexpr int64_t kBroadcastPieces = 16;

int64_t Sum(absl::Span<const int64_t> sizes) {
  int64_t sum = 0;
  for (int64_t size : sizes) sum += size;
  return sum;
}

int64_t OffsetOf(absl::Span<const int64_t> sizes, int32_t index) {
  return Sum(sizes.subspan(0, static_cast<size_t>(index)));
}

// Each member has a block for each other one, and a piece holds a part of all of them.
bool ShowsBlocks(CollectiveKind kind) {
  return kind == CollectiveKind::kReducescatter || kind == CollectiveKind::kAlltoall;
}

// The part of a block of `size_bytes` that belongs to `piece`.
ByteRange PieceOf(const NodeMode& mode, int64_t piece, int64_t size_bytes) {
  if (mode.shared) return {0, piece == 0 ? size_bytes : 0};
  const int64_t begin = std::min(size_bytes, piece * mode.piece_bytes);
  return {begin, std::min(size_bytes - begin, mode.piece_bytes)};
}

void Add(NodeOperations& operations, const NodeOperation& operation) {
  if (operation.size_bytes > 0) operations.push_back(operation);
}

// Allreduce and reduce, whose outputs are whole: everybody combines a slice.
void AddSlices(const NodeCollective& c, const NodeMode& mode, int64_t step,
               NodeOperations& operations) {
  const bool rooted = c.kind == CollectiveKind::kReduce;
  const ByteRange piece = PieceOf(mode, step, c.size_bytes);
  const ByteRange own =
      NodeSliceOf(piece.offset_bytes, piece.offset_bytes + piece.size_bytes, c.self, c.members);
  NodeOperation combine;
  combine.combines = true;
  combine.size_bytes = own.size_bytes;
  combine.from_bytes = combine.to_bytes = own.offset_bytes;
  combine.staged_bytes = own.offset_bytes - piece.offset_bytes;
  combine.target = !mode.shared ? NodeTarget::kOwnResult
                   : rooted     ? NodeTarget::kRootOutput
                                : NodeTarget::kEveryOutput;
  Add(operations, combine);
  if (mode.shared || step == 0 || (rooted && c.self != c.root)) return;
  const ByteRange made = PieceOf(mode, step - 1, c.size_bytes);
  for (int32_t i = 1; i < c.members; ++i) {
    const int32_t from = (c.self + i) % c.members;  // not all from the same one at once
    const ByteRange slice =
        NodeSliceOf(made.offset_bytes, made.offset_bytes + made.size_bytes, from, c.members);
    NodeOperation fetch;
    fetch.from_result = true;
    fetch.from = from;
    fetch.size_bytes = slice.size_bytes;
    fetch.from_bytes = fetch.to_bytes = slice.offset_bytes;
    fetch.staged_bytes = slice.offset_bytes - made.offset_bytes;
    Add(operations, fetch);
  }
}

void AddBroadcast(const NodeCollective& c, const NodeMode& mode, int64_t step,
                  NodeOperations& operations) {
  const ByteRange piece = PieceOf(mode, step, c.size_bytes);
  NodeOperation copy;
  copy.from = c.root;
  if (mode.shared) {
    const ByteRange own = NodeSliceOf(0, piece.size_bytes, c.self, c.members);
    copy.size_bytes = own.size_bytes;
    copy.from_bytes = copy.to_bytes = own.offset_bytes;
    copy.target = NodeTarget::kOthersOutput;
  } else if (c.self != c.root) {
    copy.size_bytes = piece.size_bytes;
    copy.from_bytes = copy.to_bytes = piece.offset_bytes;
  }
  Add(operations, copy);
}

void AddOwnBlock(const NodeCollective& c, const NodeMode& mode, int64_t step,
                 NodeOperations& operations) {
  const int64_t block = c.input_blocks[static_cast<size_t>(c.self)];
  const ByteRange piece = PieceOf(mode, step, block);
  NodeOperation combine;
  combine.combines = true;
  combine.size_bytes = piece.size_bytes;
  combine.from_bytes = OffsetOf(c.input_blocks, c.self) + piece.offset_bytes;
  combine.staged_bytes = c.self * mode.piece_bytes;
  combine.to_bytes = piece.offset_bytes;
  Add(operations, combine);
}

// Allgather, alltoall, gather: everybody fetches what is for it.
void AddFetches(const NodeCollective& c, const NodeMode& mode, int64_t step,
                NodeOperations& operations) {
  if (c.kind == CollectiveKind::kGather && c.self != c.root) return;
  for (int32_t i = 0; i < c.members; ++i) {
    const int32_t from = (c.self + i) % c.members;
    const size_t index = static_cast<size_t>(from);
    const ByteRange piece = PieceOf(mode, step, c.output_blocks[index]);
    NodeOperation fetch;
    fetch.from = from;
    fetch.size_bytes = piece.size_bytes;
    fetch.from_bytes = piece.offset_bytes;
    if (c.kind == CollectiveKind::kAlltoall) {
      fetch.from_bytes += c.block_offsets[index];
      fetch.staged_bytes = c.self * mode.piece_bytes;
    }
    fetch.to_bytes = OffsetOf(c.output_blocks, from) + piece.offset_bytes;
    Add(operations, fetch);
  }
}

}  // namespace

ByteRange NodeSliceOf(int64_t begin, int64_t end, int32_t member, int32_t members) {
  // In cache lines, so that no product overflows; what is left over is the last one's.
  const int64_t lines = (end - begin) / kSliceBytes;
  const int64_t first = begin + lines / members * member * kSliceBytes +
                        std::min<int64_t>(member, lines % members) * kSliceBytes;
  const int64_t size = lines / members + (member < lines % members ? 1 : 0);
  if (member + 1 == members) return {first, end - first};
  return {first, size * kSliceBytes};
}

bool HasNodeResults(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kReduce;
}

int64_t LargestBlockBytes(const NodeCollective& c) {
  switch (c.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kGather:  // its input
      return c.size_bytes;
    case CollectiveKind::kAllgather:
      return *std::max_element(c.output_blocks.begin(), c.output_blocks.end());
    case CollectiveKind::kReducescatter:
    case CollectiveKind::kAlltoall:
      return *std::max_element(c.input_blocks.begin(), c.input_blocks.end());
    default:
      return 0;
  }
}

NodeMode StagedMode(const NodeCollective& c, const NodeStaging& staging) {
  NodeMode mode;
  mode.shared = false;
  int64_t share = staging.buffer_bytes;
  if (ShowsBlocks(c.kind)) share /= c.members;
  // While one copies in the others copy out: with few pieces they would wait for each other, with
  // many each step costs its time.
  if (c.kind == CollectiveKind::kBroadcast)
    share = std::min(share, std::max(staging.broadcast_bytes, c.size_bytes / kBroadcastPieces));
  mode.piece_bytes = share / kSliceBytes * kSliceBytes;
  COORDD_CHECK(mode.piece_bytes > 0);
  if (c.kind == CollectiveKind::kBroadcast)
    mode.shown = kStagingBuffers * staging.buffer_bytes / mode.piece_bytes;
  return mode;
}

int64_t ShownAt(const NodeCollective& c, const NodeMode& mode, const NodeStaging& staging,
                int64_t piece) {
  const bool one_way = c.kind == CollectiveKind::kBroadcast;
  return piece % mode.shown * (one_way ? mode.piece_bytes : staging.buffer_bytes);
}

NodeWait WaitBefore(const NodeCollective& c, const NodeMode& mode, int64_t step) {
  if (mode.shared || c.kind != CollectiveKind::kBroadcast) return {NodeWait::kAll, step};
  // Whoever receives has its result as soon as it has the last piece.
  if (c.self != c.root) return {c.root, step < mode.pieces ? step : 0};
  // The root shows the next piece where the one that was shown `shown` steps before lay.
  if (step < mode.pieces) return {NodeWait::kAll, std::max<int64_t>(0, step + 2 - mode.shown)};
  return {NodeWait::kAll, step};
}

int64_t NodeSteps(const NodeCollective& c, const NodeMode& mode) {
  if (c.kind == CollectiveKind::kBarrier) return 0;
  return mode.pieces + (!mode.shared && HasNodeResults(c.kind) ? 1 : 0);
}

NodeOperations OperationsOf(const NodeCollective& c, const NodeMode& mode, int64_t step) {
  NodeOperations operations;
  switch (c.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduce:
      AddSlices(c, mode, step, operations);
      break;
    case CollectiveKind::kBroadcast:
      AddBroadcast(c, mode, step, operations);
      break;
    case CollectiveKind::kReducescatter:
      AddOwnBlock(c, mode, step, operations);
      break;
    case CollectiveKind::kAllgather:
    case CollectiveKind::kAlltoall:
    case CollectiveKind::kGather:
      AddFetches(c, mode, step, operations);
      break;
    default:
      break;
  }
  return operations;
}

StagedRanges StagedRangesOf(const NodeCollective& c, const NodeMode& mode, int64_t step) {
  StagedRanges ranges;
  auto add = [&](int64_t block_offset, int64_t block_bytes, int64_t to_bytes) {
    const ByteRange piece = PieceOf(mode, step, block_bytes);
    if (piece.size_bytes > 0)
      ranges.push_back({block_offset + piece.offset_bytes, to_bytes, piece.size_bytes});
  };
  switch (c.kind) {
    case CollectiveKind::kReducescatter:
    case CollectiveKind::kAlltoall: {
      int64_t offset = 0;
      for (int32_t to = 0; to < c.members; ++to) {
        const int64_t block_bytes = c.input_blocks[static_cast<size_t>(to)];
        if (to != c.self) add(offset, block_bytes, to * mode.piece_bytes);
        offset += block_bytes;
      }
      break;
    }
    case CollectiveKind::kAllgather:
      add(0, c.output_blocks[static_cast<size_t>(c.self)], 0);
      break;
    case CollectiveKind::kBroadcast:
      if (c.self == c.root) add(0, c.size_bytes, 0);
      break;
    case CollectiveKind::kGather:
      if (c.self != c.root) add(0, c.size_bytes, 0);
      break;
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduce: {
      // All but the own slice, which nobody else reads.
      const ByteRange piece = PieceOf(mode, step, c.size_bytes);
      const int64_t begin = piece.offset_bytes;
      const int64_t end = begin + piece.size_bytes;
      const ByteRange own = NodeSliceOf(begin, end, c.self, c.members);
      const int64_t behind = own.offset_bytes + own.size_bytes;
      if (own.offset_bytes > begin) ranges.push_back({begin, 0, own.offset_bytes - begin});
      if (end > behind) ranges.push_back({behind, behind - begin, end - behind});
      break;
    }
    default:
      break;
  }
  return ranges;
}

}  // namespace coordd
