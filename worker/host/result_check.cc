#include "worker/host/result_check.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/protocol/tensor_spec.h"
#include "worker/host/result_reference.h"

namespace coordd {
namespace {

int64_t Before(const std::vector<int64_t>& blocks, size_t rank) {
  return std::accumulate(blocks.begin(), blocks.begin() + static_cast<int64_t>(rank), int64_t{0});
}

absl::Span<std::byte> BytesOf(std::vector<int64_t>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(int64_t)};
}

// What this rank brings: of a broadcast only its root has something.
absl::Span<const std::byte> InputOf(const CollectiveArgs& args, int32_t self) {
  if (args.kind != CollectiveKind::kBroadcast) return args.input;
  return ToInt(args.root) == self ? args.output : absl::Span<const std::byte>();
}

}  // namespace

ResultCheck::ResultCheck(const CollectiveArgs& args, int32_t self, int32_t ranks, double tolerance,
                         int64_t piece_bytes)
    : args_(args),
      self_(static_cast<size_t>(self)),
      ranks_(static_cast<size_t>(ranks)),
      tolerance_(tolerance),
      piece_bytes_(piece_bytes),
      words_(HasSplits(args.kind) ? ranks_ + 1 : 1),
      starts_(ranks_) {
  const absl::Span<const std::byte> input = InputOf(args, self);
  own_.assign(input.begin(), input.end());
}

std::optional<CollectiveArgs> ResultCheck::Next() {
  if (stage_ == Stage::kBegin) {
    stage_ = Stage::kSizes;
    return Sizes();
  }
  if (stage_ == Stage::kSizes) {
    stage_ = Stage::kPieces;
  } else {
    ++source_;
    if (by_broadcast() && source_ < ranks_) return PieceArgs();
    ComparePiece();
    first_byte_ += piece_bytes_;
  }
  if (!BeginPiece()) return std::nullopt;
  return PieceArgs();
}

CollectiveArgs ResultCheck::Sizes() {
  told_ = {static_cast<int64_t>(own_.size())};
  if (HasSplits(args_.kind))
    told_.insert(told_.end(), args_.input_block_bytes.begin(), args_.input_block_bytes.end());
  sizes_.assign(words_ * ranks_, 0);
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllgather;
  args.input = BytesOf(told_);
  args.output = BytesOf(sizes_);
  args.output_block_bytes.assign(ranks_, static_cast<int64_t>(args.input.size()));
  return args;
}

int64_t ResultCheck::PieceBytesOf(size_t rank) const {
  return std::clamp(input_bytes(rank) - first_byte_, int64_t{0}, piece_bytes_);
}

bool ResultCheck::BeginPiece() {
  int64_t total = 0;
  for (size_t r = 0; r < ranks_; ++r) {
    starts_[r] = total;
    total += PieceBytesOf(r);
  }
  if (total == 0) return false;
  gathered_.resize(static_cast<size_t>(total));
  const auto own = static_cast<size_t>(PieceBytesOf(self_));
  if (own > 0) std::memcpy(gathered_.data() + starts_[self_], own_.data() + first_byte_, own);
  source_ = 0;
  return true;
}

CollectiveArgs ResultCheck::PieceArgs() {
  CollectiveArgs args;
  const absl::Span<std::byte> all = absl::MakeSpan(gathered_);
  if (by_broadcast()) {
    args.kind = CollectiveKind::kBroadcast;
    args.root = Rank{static_cast<int32_t>(source_)};
    args.output = all.subspan(static_cast<size_t>(starts_[source_]),
                              static_cast<size_t>(PieceBytesOf(source_)));
    return args;
  }
  args.kind = CollectiveKind::kAllgather;
  args.input =
      all.subspan(static_cast<size_t>(starts_[self_]), static_cast<size_t>(PieceBytesOf(self_)));
  args.output = all;
  for (size_t r = 0; r < ranks_; ++r) args.output_block_bytes.push_back(PieceBytesOf(r));
  return args;
}

void ResultCheck::ComparePiece() {
  switch (args_.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kReducescatter:
      return CompareReduced();
    case CollectiveKind::kAlltoall:
      return CompareAlltoall();
    default:
      return CompareMoved();
  }
}

void ResultCheck::CompareReduced() {
  if (args_.output.empty()) return;  // not the root
  for (size_t r = 0; r < ranks_; ++r) {
    if (input_bytes(r) == input_bytes(self_)) continue;
    if (mismatch_.empty()) {
      mismatch_ = absl::StrCat(Name(args_.kind), ": rank ", r, " of the group reduced ",
                               input_bytes(r), " bytes, expected ", input_bytes(self_));
    }
    return;
  }
  // Of a reducescatter this rank has a part of what is reduced.
  const bool scatters = args_.kind == CollectiveKind::kReducescatter;
  const int64_t result_first = scatters ? Before(args_.input_block_bytes, self_) : 0;
  const int64_t result_end = result_first + static_cast<int64_t>(args_.output.size());
  const int64_t first = std::max(first_byte_, result_first);
  const int64_t end = std::min(first_byte_ + PieceBytesOf(self_), result_end);
  if (first >= end) return;
  std::vector<const std::byte*> inputs;
  for (size_t r = 0; r < ranks_; ++r) inputs.push_back(PieceOf(r) + (first - first_byte_));
  const int64_t element = SizeOf(args_.dtype);
  const int64_t count = (end - first) / element;
  const int64_t offset = first - result_first;
  expected_.resize(static_cast<size_t>(end - first));
  const bool scaled = args_.scaled != nullptr && *args_.scaled;
  const int64_t wrong =
      FirstWrongReduction(args_.dtype, args_.op, tolerance_, inputs, args_.output.data() + offset,
                          count, expected_.data(), scaled ? args_.scale : 1.0);
  if (wrong >= 0) Report(offset, wrong);
  Dump(offset, expected_.data(), count);
}

void ResultCheck::CompareMoved() {
  if (args_.kind == CollectiveKind::kBroadcast) {
    const auto root = static_cast<size_t>(ToInt(args_.root));
    return CompareBytes(first_byte_, PieceOf(root), PieceBytesOf(root));
  }
  if (args_.output.empty()) return;  // not the root
  for (size_t r = 0; r < ranks_; ++r)
    CompareBytes(Before(args_.output_block_bytes, r) + first_byte_, PieceOf(r), PieceBytesOf(r));
}

void ResultCheck::CompareAlltoall() {
  for (size_t r = 0; r < ranks_; ++r) {
    // Where in rank r's input the block for this rank is.
    const std::vector<int64_t> blocks(sizes_.begin() + static_cast<int64_t>(r * words_ + 1),
                                      sizes_.begin() + static_cast<int64_t>((r + 1) * words_));
    const int64_t block_first = Before(blocks, self_);
    const int64_t first = std::max(first_byte_, block_first);
    const int64_t end = std::min(first_byte_ + PieceBytesOf(r), block_first + blocks[self_]);
    if (first >= end) continue;
    CompareBytes(Before(args_.output_block_bytes, r) + (first - block_first),
                 PieceOf(r) + (first - first_byte_), end - first);
  }
}

void ResultCheck::CompareBytes(int64_t result_offset, const std::byte* expected, int64_t bytes) {
  if (bytes == 0) return;
  const std::byte* const got = args_.output.data() + result_offset;
  const int64_t element = SizeOf(args_.dtype);
  if (std::memcmp(got, expected, static_cast<size_t>(bytes)) != 0) {
    const int64_t at = std::mismatch(got, got + bytes, expected).first - got;
    expected_.assign(expected, expected + bytes);
    Report(result_offset, at / element);
  }
  Dump(result_offset, expected, bytes / element);
}

void ResultCheck::Report(int64_t result_offset, int64_t wrong) {
  if (!mismatch_.empty()) return;
  const int64_t element = SizeOf(args_.dtype);
  const int64_t offset = result_offset + wrong * element;
  const std::string where =
      args_.element_at ? args_.element_at(offset) : absl::StrCat("element ", offset / element);
  const bool reduces = args_.op != ReduceOp::kNone;
  mismatch_ = absl::StrCat(Name(args_.kind), " (", Name(args_.dtype), reduces ? " " : "",
                           reduces ? Name(args_.op) : absl::string_view(), ") of ", where, ": got ",
                           ElementText(args_.dtype, args_.output.data() + result_offset, wrong),
                           ", expected ", ElementText(args_.dtype, expected_.data(), wrong));
}

void ResultCheck::Dump(int64_t result_offset, const std::byte* expected, int64_t count) {
  if (mismatch_.empty()) return;
  const auto element = static_cast<size_t>(SizeOf(args_.dtype));
  const std::byte* const got = args_.output.data() + result_offset;
  for (int64_t i = 0; i < count && dump_.size() < kMaxDumpBytes; ++i) {
    const size_t at = static_cast<size_t>(i) * element;
    const bool differs = std::memcmp(got + at, expected + at, element) != 0;
    absl::StrAppend(&dump_, result_offset / static_cast<int64_t>(element) + i, "\t",
                    ElementText(args_.dtype, got, i), "\t", ElementText(args_.dtype, expected, i),
                    differs ? "\t*\n" : "\n");
  }
}

}  // namespace coordd
