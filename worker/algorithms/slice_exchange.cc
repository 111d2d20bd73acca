#include "worker/algorithms/slice_exchange.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.h"
#include "worker/algorithms/algorithm_table.h"
#include "worker/interfaces/collective_args.h"

namespace coordd {
namespace {

constexpr int64_t kLineBytes = 64;
// Of a buffer that is cut: some of them fit the second-level cache.
constexpr int64_t kSliceBytesMin = int64_t{64} << 10, kSliceBytesMax = int64_t{256} << 10;
constexpr int64_t kSlicesOfABroadcast = 64;
// Of the slices of all blocks together, half of which, as a rule, is scratch of a reducescatter's
// piece: of many nodes slices are smaller.
constexpr int64_t kPieceBytesMax = int64_t{16} << 20;

TransferSchedule ScheduleOf(const CollectiveArgs& args, AcrossNodes across, int64_t slice_bytes,
                            absl::Span<const ByteRange> parts) {
  const Rank self{across.self};
  const int32_t nodes = static_cast<int32_t>(across.ranks.size());
  switch (args.kind) {
    case CollectiveKind::kBroadcast:
      return MakeSliceBroadcast(self, nodes, Rank{across.root}, across.grid, slice_bytes,
                                static_cast<int64_t>(args.output.size()));
    case CollectiveKind::kReduce:
      return MakeSliceReduce(self, nodes, Rank{across.root}, slice_bytes, SizeOf(args.dtype));
    case CollectiveKind::kAllgather:
      return MakeSliceAllgather(self, across.grid, parts);
    case CollectiveKind::kReducescatter:
      return MakeSliceReducescatter(self, across.grid, parts);
    default:
      return MakeSliceSchedule(self, nodes, across.grid, slice_bytes, SizeOf(args.dtype));
  }
}

// Of an allgather's output or a reducescatter's input, which slices are cut out of.
absl::Span<const int64_t> BlocksOf(const CollectiveArgs& args) {
  if (args.kind == CollectiveKind::kAllgather) return args.output_block_bytes;
  if (args.kind == CollectiveKind::kReducescatter) return args.input_block_bytes;
  return {};
}

int64_t RoundedUp(int64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

// What is cut into slices: the input, or the largest block.
int64_t CutBytes(const CollectiveArgs& args) {
  const absl::Span<const int64_t> blocks = BlocksOf(args);
  if (blocks.empty()) return static_cast<int64_t>(NodeInputOf(args).size());
  return *std::max_element(blocks.begin(), blocks.end());
}

// The largest piece of blocks.
std::vector<ByteRange> LargestParts(AcrossNodes across, int64_t slice_bytes) {
  return RangesOf(std::vector<int64_t>(across.ranks.size(), slice_bytes));
}

// Of each piece, what is combined inside the node where it is not in an output.
int64_t PartialBytes(const CollectiveArgs& args, const AcrossNodes& across, int64_t slice_bytes) {
  switch (args.kind) {
    case CollectiveKind::kReducescatter:
      return across.apart ? 0 : static_cast<int64_t>(across.ranks.size()) * RoundedUp(slice_bytes);
    case CollectiveKind::kReduce:
      return across.carries ? RoundedUp(slice_bytes) : 0;
    default:
      return 0;
  }
}

// Of any slice up to `slice_bytes`; segments lie behind the schedule's own.
int64_t ScratchBytes(const TransferSchedule& schedule, const RunOptions& options) {
  return RoundedUp(schedule.scratch_bytes) +
         RoundedUp(CollectiveRun::SegmentScratchBytes(schedule, options));
}

}  // namespace

SliceExchange::SliceExchange(const CollectiveArgs& args, AcrossNodes across,
                             int64_t slice_bytes_max, RunOptions options, Transport& transport)
    : args_(args),
      across_(across),
      options_(options),
      transport_(transport),
      partial_each_(PartialBytes(args, across, slice_bytes_max)),
      scratch_each_(across.carries ? ScratchBytes(ScheduleOf(args, across, slice_bytes_max,
                                                             LargestParts(across, slice_bytes_max)),
                                                  options)
                                   : 0) {}

absl::Span<std::byte> SliceExchange::Partial(int64_t piece) const {
  const size_t begin = IndexOf(piece) * static_cast<size_t>(partial_each_);
  return scratch_.subspan(begin, static_cast<size_t>(partial_each_));
}

int64_t SliceExchange::SliceBytesFor(const CollectiveArgs& args) {
  const int64_t blocks = std::max<int64_t>(1, std::ssize(BlocksOf(args)));
  const int64_t most = std::clamp(kPieceBytesMax / blocks, kSliceBytesMin, kSliceBytesMax);
  const int64_t cut_bytes = CutBytes(args);
  // A broadcast's slices follow each other along all nodes: there are to be many.
  const int64_t slices = args.kind == CollectiveKind::kBroadcast ? kSlicesOfABroadcast : kInFlight;
  const int64_t slice_bytes = std::clamp(cut_bytes / slices, kSliceBytesMin, most);
  return std::min(slice_bytes / kLineBytes * kLineBytes, RoundedUp(cut_bytes));
}

void SliceExchange::BeginAll(int64_t slice_bytes) {
  slice_bytes_ = slice_bytes;
  pieces_of_all_ = (CutBytes(args_) + slice_bytes - 1) / slice_bytes;
  blocks_ = RangesOf(BlocksOf(args_));
  COORDD_CHECK(blocks_.empty() || (across_.apart && blocks_.size() == across_.ranks.size()));
}

// A slice of each block.
void SliceExchange::BeginNextOfBlocks() {
  const int64_t begin = next_ * slice_bytes_;
  std::vector<ByteRange> parts = blocks_;
  for (ByteRange& part : parts) {
    const int64_t cut = std::min(begin, part.size_bytes);
    part = {part.offset_bytes + cut, std::min(slice_bytes_, part.size_bytes - cut)};
  }
  const ByteRange own = parts[static_cast<size_t>(across_.self)];
  const size_t at = static_cast<size_t>(own.offset_bytes -
                                        blocks_[static_cast<size_t>(across_.self)].offset_bytes);
  const size_t size = static_cast<size_t>(own.size_bytes);
  if (args_.kind == CollectiveKind::kAllgather) {
    Begin(next_++, args_.input.subspan(at, size), args_.output, parts);
  } else {
    Begin(next_++, args_.input, args_.output.subspan(at, size), parts);
  }
}

bool SliceExchange::BeginNext() {
  if (next_ == pieces_of_all_ || !Ended(next_ - kInFlight)) return false;
  if (!blocks_.empty()) {
    BeginNextOfBlocks();
    return true;
  }
  const size_t begin = static_cast<size_t>(next_ * slice_bytes_);
  const size_t size = static_cast<size_t>(slice_bytes_);
  // Of a reduce there is none but the root's.
  const absl::Span<std::byte> output =
      args_.output.empty() ? args_.output : args_.output.subspan(begin, size);
  if (args_.kind == CollectiveKind::kBroadcast) {
    Begin(next_++, output, output);
  } else {
    Begin(next_++, args_.input.subspan(begin, size), output);
  }
  return true;
}

void SliceExchange::Begin(int64_t piece, absl::Span<const std::byte> input,
                          absl::Span<std::byte> output, absl::Span<const ByteRange> parts) {
  if (!status_.ok()) return;
  Piece& at = pieces_[IndexOf(piece)];
  COORDD_CHECK(!at.run.has_value() && at.number < piece);
  at.number = piece;
  TransferSchedule schedule = ScheduleOf(args_, across_, static_cast<int64_t>(input.size()), parts);
  const int64_t begin =
      kInFlight * partial_each_ + static_cast<int64_t>(IndexOf(piece)) * scratch_each_;
  const auto scratch =
      scratch_.subspan(static_cast<size_t>(begin), static_cast<size_t>(scratch_each_));
  RunBuffers buffers{input, output, {}, {}};
  buffers.scratch = scratch.first(static_cast<size_t>(schedule.scratch_bytes));
  buffers.segments = scratch.subspan(static_cast<size_t>(RoundedUp(schedule.scratch_bytes)));
  at.run.emplace(std::move(schedule), args_.dtype, args_.op, Tag{args_.lane, args_.sequence, piece},
                 buffers, transport_, options_, across_.ranks);
  at.run->Advance();
}

bool SliceExchange::Ended(int64_t piece) const {
  if (piece < 0) return true;
  const Piece& at = pieces_[IndexOf(piece)];
  return at.number != piece || !at.run.has_value();
}

bool SliceExchange::Advance() {
  bool moved = false;
  for (Piece& piece : pieces_) {
    if (!piece.run.has_value()) continue;
    moved |= piece.run->Advance();
    if (!piece.run->finished()) {
      if (!piece.run->status().ok()) Fail(piece.run->status());
      continue;
    }
    const absl::Status ended = piece.run->status();
    piece.run.reset();
    if (!ended.ok()) Fail(ended);
    moved = true;
  }
  while (status_.ok() && BeginNext()) moved = true;
  return moved;
}

void SliceExchange::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
  for (Piece& piece : pieces_) {
    if (piece.run.has_value()) piece.run->Fail(status_);
  }
}

bool SliceExchange::idle() const {
  return std::all_of(pieces_.begin(), pieces_.end(), [](const Piece& piece) {
    return !piece.run.has_value() || piece.run->finished();
  });
}

}  // namespace coordd
