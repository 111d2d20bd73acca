#include "worker/node/node_plan.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/protocol/tensor_spec.h"

namespace coordd {
namespace {

// Of a staged broadcast, where buffers and the smallest piece allow it.
constexpr int64_t kBroadcastPieces = 16;
// Of blocks that are exchanged, however many there are: a message must be worth its way.
constexpr int64_t kBlockPieceBytesMin = int64_t{8} << 10;

int64_t Sum(absl::Span<const int64_t> sizes) {
  int64_t sum = 0;
  for (int64_t size : sizes) sum += size;
  return sum;
}

int64_t OffsetOf(absl::Span<const int64_t> sizes, int32_t index) {
  return Sum(sizes.subspan(0, static_cast<size_t>(index)));
}

// The part of a block of `size_bytes` that belongs to `piece`.
ByteRange PieceOf(const NodeMode& mode, int64_t piece, int64_t size_bytes) {
  if (mode.shared && !mode.exchanged) return {0, piece == 0 ? size_bytes : 0};
  const int64_t begin = std::min(size_bytes, piece * mode.piece_bytes);
  return {begin, std::min(size_bytes - begin, mode.piece_bytes)};
}

void Add(NodeOperations& operations, const NodeOperation& operation) {
  if (operation.size_bytes > 0) operations.push_back(operation);
}

// How many steps behind what is combined its results are: in the same one, or those that come back
// from the other nodes.
int64_t ResultsBehind(const NodeMode& mode) { return mode.exchanged ? kExchangeAhead - 1 : 0; }

ByteRange SliceOfPiece(const NodeCollective& c, const ByteRange& piece, int32_t member) {
  const int32_t carriers = c.carriers > 0 ? c.carriers : c.members;
  const int64_t end = piece.offset_bytes + piece.size_bytes;
  if (member >= carriers) return {end, 0};
  return NodeSliceOf(piece.offset_bytes, end, member, carriers);
}

// Whether members fetch slices from those who have made them.
bool FetchesResults(const NodeCollective& c, const NodeMode& mode) {
  if (mode.shared || !mode.exchanged) return !mode.shared && HasNodeResults(c.kind);
  if (c.kind == CollectiveKind::kReduce) return c.root != NodeCollective::kElsewhere;
  return c.kind != CollectiveKind::kReducescatter;
}

// By node, of the blocks of the members of this number: what is in `piece`, in the buffer of all
// blocks.
NodeParts ColumnOf(const NodeCollective& c, absl::Span<const int64_t> blocks, const NodeMode& mode,
                   int64_t piece, int32_t member) {
  NodeParts parts;
  int64_t offset = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (static_cast<int32_t>(i % static_cast<size_t>(c.members)) == member) {
      const ByteRange part = PieceOf(mode, piece, blocks[i]);
      parts.push_back({offset + part.offset_bytes, part.size_bytes});
    }
    offset += blocks[i];
  }
  return parts;
}

bool HasBytes(const NodeParts& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [](const ByteRange& part) { return part.size_bytes > 0; });
}

NodeOperation BeginExchange(const NodeCollective& c, int64_t piece) {
  NodeOperation begin;
  begin.from = c.self;
  begin.target = NodeTarget::kNowhere;
  begin.exchange = NodeExchange::kBegins;
  begin.piece = piece;
  return begin;
}

// Slices that the others had in the step before.
void AddResultFetches(const NodeCollective& c, const NodeMode& mode, int64_t step,
                      NodeOperations& operations) {
  const int64_t piece = step - 1 - ResultsBehind(mode);
  if (piece < 0) return;
  const ByteRange made = PieceOf(mode, piece, c.size_bytes);
  for (int32_t i = 1; i < c.members; ++i) {
    const int32_t from = (c.self + i) % c.members;  // not all from the same one at once
    const ByteRange slice = SliceOfPiece(c, made, from);
    NodeOperation fetch;
    fetch.from_result = true;
    fetch.from = from;
    fetch.size_bytes = slice.size_bytes;
    fetch.from_bytes = fetch.to_bytes = slice.offset_bytes;
    fetch.staged_bytes = slice.offset_bytes - made.offset_bytes;
    Add(operations, fetch);
  }
}

// The own slice of a piece, to the other nodes and from them.
void AddExchange(const NodeCollective& c, const NodeMode& mode, int64_t step,
                 NodeOperations& operations) {
  const bool broadcast = c.kind == CollectiveKind::kBroadcast;
  const bool reduce = c.kind == CollectiveKind::kReduce;
  const bool fetches = broadcast ? c.self != c.root : !reduce || c.self == c.root;
  const ByteRange own = SliceOfPiece(c, PieceOf(mode, step, c.size_bytes), c.self);
  NodeOperation begin{.combines = !broadcast};
  begin.from = broadcast && c.root != NodeCollective::kElsewhere ? c.root : c.self;
  begin.size_bytes = own.size_bytes;
  begin.from_bytes = begin.to_bytes = own.offset_bytes;
  begin.staged_bytes = own.offset_bytes - step * mode.piece_bytes;
  begin.target = SliceHome(c, mode);
  if (broadcast && begin.from == c.self) begin.target = NodeTarget::kNowhere;
  begin.exchange = NodeExchange::kBegins;
  begin.piece = step;
  Add(operations, begin);
  if (!mode.shared && fetches) AddResultFetches(c, mode, step, operations);
  // Last, because it may have to wait.
  const int64_t ended = step - ResultsBehind(mode);
  if (ended < 0) return;
  const ByteRange back = SliceOfPiece(c, PieceOf(mode, ended, c.size_bytes), c.self);
  NodeOperation give;
  give.from = c.self;
  give.size_bytes = back.size_bytes;
  give.from_bytes = give.to_bytes = back.offset_bytes;
  give.staged_bytes = back.offset_bytes - ended * mode.piece_bytes;
  // Of a reduce it has come to the root, unless that is to fetch it.
  const bool fetched = c.root != NodeCollective::kElsewhere && c.self != c.root;
  give.target = reduce && (mode.shared || !fetched) ? NodeTarget::kNowhere
                : !mode.shared                      ? NodeTarget::kOwnResult
                : broadcast                         ? NodeTarget::kOthersOutput
                                                    : NodeTarget::kEveryOutput;
  give.exchange = NodeExchange::kEnds;
  give.piece = ended;
  Add(operations, give);
}

// Pieces of the column's blocks, to the other nodes and from them; what is there goes to the own.
void AddExchangedGather(const NodeCollective& c, const NodeMode& mode, int64_t step,
                        NodeOperations& operations) {
  if (HasBytes(ColumnOf(c, c.output_blocks, mode, step, c.self)))
    operations.push_back(BeginExchange(c, step));
  const int64_t made = step - 1 - ResultsBehind(mode);
  for (int32_t i = 1; !mode.shared && made >= 0 && i < c.members; ++i) {
    const int32_t from = (c.self + i) % c.members;
    const NodeParts parts = ColumnOf(c, c.output_blocks, mode, made, from);
    for (size_t node = 0; node < parts.size(); ++node) {
      NodeOperation fetch;
      fetch.from_result = true;
      fetch.from = from;
      fetch.size_bytes = parts[node].size_bytes;
      fetch.from_bytes = fetch.to_bytes = parts[node].offset_bytes;
      fetch.staged_bytes = static_cast<int64_t>(node) * mode.piece_bytes;
      Add(operations, fetch);
    }
  }
  const int64_t ended = step - ResultsBehind(mode);
  if (ended < 0) return;
  const NodeParts parts = ColumnOf(c, c.output_blocks, mode, ended, c.self);
  for (size_t node = 0; node < parts.size(); ++node) {
    NodeOperation give;
    give.from = c.self;
    give.size_bytes = parts[node].size_bytes;
    give.from_bytes = give.to_bytes = parts[node].offset_bytes;
    give.staged_bytes = static_cast<int64_t>(node) * mode.piece_bytes;
    give.target = mode.shared ? NodeTarget::kEveryOutput : NodeTarget::kOwnResult;
    give.exchange = NodeExchange::kEnds;
    give.piece = ended;
    Add(operations, give);
  }
}

// Pieces of the column's blocks, each combined for the member that it belongs to, and sent there.
void AddExchangedScatter(const NodeCollective& c, const NodeMode& mode, int64_t step,
                         NodeOperations& operations) {
  const NodeParts parts = ColumnOf(c, c.input_blocks, mode, step, c.self);
  for (size_t node = 0; node < parts.size(); ++node) {
    NodeOperation combine;
    combine.combines = true;
    combine.from = c.self;
    combine.size_bytes = parts[node].size_bytes;
    combine.from_bytes = parts[node].offset_bytes;
    combine.staged_bytes = (c.self * c.nodes + static_cast<int64_t>(node)) * mode.piece_bytes;
    combine.to_bytes = static_cast<int64_t>(node) * mode.piece_bytes;
    combine.target = NodeTarget::kPartial;
    combine.piece = step;
    Add(operations, combine);
  }
  if (HasBytes(parts)) operations.push_back(BeginExchange(c, step));
  const int64_t ended = step - ResultsBehind(mode);
  if (ended < 0 || !HasBytes(ColumnOf(c, c.input_blocks, mode, ended, c.self))) return;
  NodeOperation end;
  end.from = c.self;
  end.size_bytes =
      PieceOf(mode, ended, c.input_blocks[static_cast<size_t>(c.node * c.members + c.self)])
          .size_bytes;
  // Behind the end of a block that is smaller than others there is nothing.
  if (end.size_bytes > 0) end.from_bytes = end.to_bytes = ended * mode.piece_bytes;
  end.target = NodeTarget::kNowhere;
  end.exchange = NodeExchange::kEnds;
  end.piece = ended;
  operations.push_back(end);
}

// Allreduce and reduce, whose outputs are whole: everybody combines a slice.
void AddSlices(const NodeCollective& c, const NodeMode& mode, int64_t step,
               NodeOperations& operations) {
  const bool rooted = c.kind == CollectiveKind::kReduce;
  const ByteRange piece = PieceOf(mode, step, c.size_bytes);
  const ByteRange own = SliceOfPiece(c, piece, c.self);
  NodeOperation combine;
  combine.combines = true;
  combine.size_bytes = own.size_bytes;
  combine.from_bytes = combine.to_bytes = own.offset_bytes;
  combine.staged_bytes = own.offset_bytes - piece.offset_bytes;
  combine.target = !mode.shared ? NodeTarget::kOwnResult
                   : rooted     ? NodeTarget::kRootOutput
                                : NodeTarget::kEveryOutput;
  Add(operations, combine);
  if (mode.shared || (rooted && c.self != c.root)) return;
  AddResultFetches(c, mode, step, operations);
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
    if (HasSplits(c.kind)) {
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
  if (InputIsByRank(c.kind)) return *std::max_element(c.input_blocks.begin(), c.input_blocks.end());
  switch (c.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kGather:  // its input
      return c.size_bytes;
    case CollectiveKind::kAllgather:
      return *std::max_element(c.output_blocks.begin(), c.output_blocks.end());
    default:
      return 0;
  }
}

NodeMode StagedMode(const NodeCollective& c, const NodeStaging& staging) {
  NodeMode mode;
  mode.shared = false;
  mode.buffer_bytes = staging.buffer_bytes;
  int64_t share = staging.buffer_bytes;
  if (InputIsByRank(c.kind)) share /= c.members;
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

NodeMode ExchangedMode(const NodeCollective& c, const NodeStaging& staging) {
  const bool gathers = c.kind == CollectiveKind::kAllgather;
  const bool scatters = c.kind == CollectiveKind::kReducescatter;
  COORDD_CHECK(gathers || scatters || c.kind == CollectiveKind::kAllreduce ||
               c.kind == CollectiveKind::kBroadcast || c.kind == CollectiveKind::kReduce);
  COORDD_CHECK(staging.exchange_bytes >= kSliceBytes);
  NodeMode mode;
  mode.shared = false;
  mode.exchanged = true;
  // A piece of a column's blocks; of all columns' where members show them to each other.
  const int64_t blocks = gathers ? c.nodes : scatters ? int64_t{c.nodes} * c.members : 1;
  const int64_t whole_bytes = gathers || scatters ? LargestBlockBytes(c) : c.size_bytes;
  int64_t most_bytes = staging.exchange_bytes / blocks;
  if (blocks > 1)
    most_bytes = std::max(most_bytes, std::min(kBlockPieceBytesMin, staging.exchange_bytes));
  mode.piece_bytes = std::clamp((whole_bytes + kSliceBytes - 1) / kSliceBytes * kSliceBytes,
                                kSliceBytes, most_bytes / kSliceBytes * kSliceBytes);
  mode.buffer_bytes = blocks * mode.piece_bytes;
  mode.pieces = std::max<int64_t>(1, (whole_bytes + mode.piece_bytes - 1) / mode.piece_bytes);
  return mode;
}

int64_t ExchangedPieceBytes(int64_t size_bytes, const NodeStaging& staging) {
  NodeCollective whole;
  whole.kind = CollectiveKind::kAllreduce;
  whole.size_bytes = size_bytes;
  return ExchangedMode(whole, staging).piece_bytes;
}

NodeParts ExchangedParts(const NodeCollective& c, const NodeMode& mode, int64_t piece) {
  const bool gathers = c.kind == CollectiveKind::kAllgather;
  NodeParts parts = ColumnOf(c, gathers ? c.output_blocks : c.input_blocks, mode, piece, c.self);
  for (size_t node = 0; !gathers && node < parts.size(); ++node)
    parts[node].offset_bytes = static_cast<int64_t>(node) * mode.piece_bytes;
  return parts;
}

NodeTarget SliceHome(const NodeCollective& c, const NodeMode& mode) {
  if (c.kind != CollectiveKind::kReduce || c.self == c.root) return NodeTarget::kOwnOutput;
  const bool shown = mode.shared && c.root != NodeCollective::kElsewhere;
  return shown ? NodeTarget::kRootOutput : NodeTarget::kSlice;
}

int64_t LargestSliceBytes(const NodeCollective& c, const NodeMode& mode) {
  if (c.kind == CollectiveKind::kAllgather || c.kind == CollectiveKind::kReducescatter)
    return mode.piece_bytes;
  const ByteRange piece = PieceOf(mode, 0, c.size_bytes);
  int64_t largest = 0;
  for (int32_t m = 0; m < c.members; ++m)
    largest = std::max(largest, SliceOfPiece(c, piece, m).size_bytes);
  // The last piece is smaller, but what is left over of its lines is its last slice's.
  return largest + kSliceBytes;
}

int64_t ShownAt(const NodeCollective& c, const NodeMode& mode, int64_t piece) {
  const bool one_way = c.kind == CollectiveKind::kBroadcast && !mode.exchanged;
  return piece % mode.shown * (one_way ? mode.piece_bytes : mode.buffer_bytes);
}

NodeWait WaitBefore(const NodeCollective& c, const NodeMode& mode, int64_t step) {
  // Between the posts and the end members touch nothing that another one does.
  if (mode.shared && mode.exchanged && step < NodeSteps(c, mode)) return {NodeWait::kAll, 0};
  if (mode.shared || mode.exchanged || c.kind != CollectiveKind::kBroadcast)
    return {NodeWait::kAll, step};
  // Whoever receives has its result as soon as it has the last piece.
  if (c.self != c.root) return {c.root, step < mode.pieces ? step : 0};
  // The root shows the next piece where the one that was shown `shown` steps before lay.
  if (step < mode.pieces) return {NodeWait::kAll, std::max<int64_t>(0, step + 2 - mode.shown)};
  return {NodeWait::kAll, step};
}

int64_t NodeSteps(const NodeCollective& c, const NodeMode& mode) {
  if (c.kind == CollectiveKind::kBarrier) return 0;
  return mode.pieces + ResultsBehind(mode) + (FetchesResults(c, mode) ? 1 : 0);
}

NodeOperations OperationsOf(const NodeCollective& c, const NodeMode& mode, int64_t step) {
  NodeOperations operations;
  if (mode.exchanged) {
    if (c.kind == CollectiveKind::kAllgather) {
      AddExchangedGather(c, mode, step, operations);
    } else if (c.kind == CollectiveKind::kReducescatter) {
      AddExchangedScatter(c, mode, step, operations);
    } else {
      AddExchange(c, mode, step, operations);
    }
    return operations;
  }
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
    default:
      if (FirstDimensionMayDiffer(c.kind)) AddFetches(c, mode, step, operations);
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
  if (mode.exchanged && c.kind == CollectiveKind::kAllgather) return ranges;  // nobody reads it
  if (mode.exchanged && c.kind == CollectiveKind::kReducescatter) {
    int64_t offset = 0;
    for (size_t i = 0; i < c.input_blocks.size(); ++i) {
      const int64_t node = static_cast<int64_t>(i) / c.members;
      const int64_t member = static_cast<int64_t>(i) % c.members;
      if (member != c.self)
        add(offset, c.input_blocks[i], (member * c.nodes + node) * mode.piece_bytes);
      offset += c.input_blocks[i];
    }
    return ranges;
  }
  if (InputIsByRank(c.kind)) {
    int64_t offset = 0;
    for (int32_t to = 0; to < c.members; ++to) {
      const int64_t block_bytes = c.input_blocks[static_cast<size_t>(to)];
      if (to != c.self) add(offset, block_bytes, to * mode.piece_bytes);
      offset += block_bytes;
    }
    return ranges;
  }
  switch (c.kind) {
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
      const ByteRange own = SliceOfPiece(c, piece, c.self);
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
