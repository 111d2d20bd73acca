#include "worker/batch_job.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "worker/integer_average.h"
#include "worker/reduce_kernels.h"

namespace coordd {
namespace {

// memcpy with a null pointer is undefined even for no bytes; empty tensors have null buffers.
void Copy(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void CopyAndScale(const TensorSpec& spec, double factor, std::byte* to, const std::byte* from,
                  int64_t bytes) {
  if (bytes == 0 || (to == from && factor == 1.0)) return;
  if (factor == 1.0) {
    Copy(to, from, bytes);
  } else {
    CopyScaled(spec.dtype, factor, to, from, bytes / SizeOf(spec.dtype));
  }
}

// Bytes of one row: what one step of the first dimension holds.
int64_t RowBytes(const TensorSpec& spec) {
  return NumElements(absl::MakeSpan(spec.shape).subspan(1)) * SizeOf(spec.dtype);
}

absl::Span<std::byte> Bytes(std::vector<int64_t>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(int64_t)};
}

int64_t Sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

std::shared_ptr<std::byte[]> AllocateResult(int64_t bytes) {
  constexpr std::align_val_t kAlignment{AlignedBuffer::kAlignmentBytes};
  auto* memory = static_cast<std::byte*>(
      ::operator new(static_cast<size_t>(std::max<int64_t>(bytes, 1)), kAlignment, std::nothrow));
  return std::shared_ptr<std::byte[]>(
      memory, [](std::byte* owned) { ::operator delete (owned, std::align_val_t{64}); });
}

absl::Status NoMemory(const TensorSpec& spec, int64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("tensor ", spec.name, ": no memory for a result of ", bytes, " bytes"));
}

}  // namespace

BatchJob::BatchJob(BatchContext context, LaneId lane, int64_t sequence,
                   std::vector<TensorJob> tensors)
    : context_(context),
      lane_(lane),
      sequence_(sequence),
      kind_(tensors.front().spec().kind),
      tensors_(std::move(tensors)),
      places_(tensors_.size(), nullptr) {}

CollectiveArgs BatchJob::Args() const {
  const TensorSpec& spec = tensors_.front().spec();
  CollectiveArgs args;
  args.kind = kind_;
  args.dtype = spec.dtype;
  args.op = spec.op == ReduceOp::kAverage ? ReduceOp::kSum : spec.op;
  args.lane = lane_;
  args.sequence = sequence_;
  args.root = Rank{spec.root_rank};
  args.memory = spec.memory;
  return args;
}

void BatchJob::CopyResult(const TensorSpec& spec, std::byte* to, const std::byte* from,
                          int64_t bytes) const {
  if (!Reduces(kind_)) return Copy(to, from, bytes);
  if (spec.op != ReduceOp::kAverage)
    return CopyAndScale(spec, spec.postscale_factor, to, from, bytes);
  if (!IsInteger(spec.dtype))
    return CopyAndScale(spec, spec.postscale_factor / context_.size, to, from, bytes);
  if (bytes > 0)
    CopyAveraged(spec.dtype, spec.postscale_factor, context_.size, to, from,
                 bytes / SizeOf(spec.dtype));
}

CollectiveArgs BatchJob::SizeExchange() {
  const size_t ranks = static_cast<size_t>(context_.size);
  CollectiveArgs args = Args();
  args.dtype = DataType::kInt64;
  if (kind_ == CollectiveKind::kAllgather) {
    for (const TensorJob& tensor : tensors_) sent_sizes_.push_back(tensor.spec().shape[0]);
    received_sizes_.resize(sent_sizes_.size() * ranks);
    args.output_block_bytes.assign(ranks, static_cast<int64_t>(Bytes(sent_sizes_).size()));
  } else {
    sent_sizes_ = tensors_.front().splits;
    received_sizes_.resize(ranks);
    args.input_block_bytes.assign(ranks, sizeof(int64_t));
    args.output_block_bytes.assign(ranks, sizeof(int64_t));
  }
  args.input = Bytes(sent_sizes_);
  args.output = Bytes(received_sizes_);
  return args;
}

absl::Status BatchJob::PlaceOutput(TensorJob& tensor, int64_t bytes) {
  std::byte*& place = places_[static_cast<size_t>(&tensor - tensors_.data())];
  tensor.result.output_bytes = bytes;
  if (tensor.output == nullptr) {
    tensor.result.owned_output = AllocateResult(bytes);
    place = tensor.result.owned_output.get();
    return place == nullptr ? NoMemory(tensor.spec(), bytes) : absl::OkStatus();
  }
  place = tensor.output;
  if (bytes <= tensor.output_capacity_bytes) return absl::OkStatus();
  // The other ranks count on this one: it takes part, and throws away what it gets.
  tensor.status = absl::InvalidArgumentError(absl::StrCat(
      "tensor ", tensor.spec().name, ": the result has ", bytes, " bytes, expected at most the ",
      tensor.output_capacity_bytes, " of the given output"));
  discarded_.emplace_back(bytes);
  place = discarded_.back().data();
  return place == nullptr ? NoMemory(tensor.spec(), bytes) : absl::OkStatus();
}

absl::Status BatchJob::PrepareAllgather() {
  const size_t ranks = static_cast<size_t>(context_.size);
  parts_.assign(tensors_.size(), std::vector<int64_t>(ranks));
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const TensorSpec& spec = tensors_[t].spec();
    const int64_t row_bytes = RowBytes(spec);
    int64_t rows_in_all = 0;
    for (size_t r = 0; r < ranks; ++r) {
      const int64_t rows = received_sizes_[r * tensors_.size() + t];
      if (rows < 0 || (row_bytes > 0 && rows > kMaxTensorBytes / row_bytes)) {
        return absl::InternalError(absl::StrCat("tensor ", spec.name, ": rank ", r, " announced ",
                                                rows, " rows, expected at most ", kMaxTensorBytes,
                                                " bytes"));
      }
      parts_[t][r] = rows * row_bytes;
      rows_in_all += rows;
    }
    tensors_[t].result.output_shape = spec.shape;
    tensors_[t].result.output_shape[0] = rows_in_all;
    COORDD_RETURN_IF_ERROR(PlaceOutput(tensors_[t], Sum(parts_[t])));
  }
  if (fused()) {
    blocks_ = LayOutBlocks(parts_, context_.size);
    scratch_bytes_ = blocks_.total_bytes;
  }
  return absl::OkStatus();
}

absl::Status BatchJob::PrepareAlltoall() {
  TensorJob& tensor = tensors_.front();
  const int64_t row_bytes = RowBytes(tensor.spec());
  for (size_t r = 0; r < received_sizes_.size(); ++r) {
    const int64_t rows = received_sizes_[r];
    if (rows < 0 || (row_bytes > 0 && rows > kMaxTensorBytes / row_bytes)) {
      return absl::InternalError(absl::StrCat("tensor ", tensor.spec().name, ": rank ", r,
                                              " announced ", rows, " rows, expected at most ",
                                              kMaxTensorBytes, " bytes"));
    }
  }
  tensor.result.received_splits = received_sizes_;
  tensor.result.output_shape = tensor.spec().shape;
  tensor.result.output_shape[0] = Sum(received_sizes_);
  return PlaceOutput(tensor, Sum(received_sizes_) * row_bytes);
}

absl::Status BatchJob::PrepareReducescatter() {
  for (TensorJob& tensor : tensors_) {
    const TensorSpec& spec = tensor.spec();
    const int64_t row_bytes = RowBytes(spec);
    std::vector<int64_t> parts;
    for (int32_t r = 0; r < context_.size; ++r)
      parts.push_back(SplitRows(spec.shape[0], context_.size, r).rows * row_bytes);
    tensor.result.output_shape = spec.shape;
    tensor.result.output_shape[0] = SplitRows(spec.shape[0], context_.size, context_.rank).rows;
    COORDD_RETURN_IF_ERROR(PlaceOutput(tensor, parts[static_cast<size_t>(context_.rank)]));
    parts_.push_back(std::move(parts));
  }
  if (fused() || tensors_.front().spec().prescale_factor != 1.0) {
    blocks_ = LayOutBlocks(parts_, context_.size);
    // One tensor has no padding between its blocks when they are laid out by hand.
    scratch_bytes_ =
        fused() ? blocks_.total_bytes + blocks_.block_bytes[static_cast<size_t>(context_.rank)]
                : Sum(parts_.front());
  }
  return absl::OkStatus();
}

absl::Status BatchJob::Prepare() {
  if (prepared_) return absl::OkStatus();
  prepared_ = true;
  switch (kind_) {
    case CollectiveKind::kAllgather:
      return PrepareAllgather();
    case CollectiveKind::kAlltoall:
      return PrepareAlltoall();
    case CollectiveKind::kReducescatter:
      return PrepareReducescatter();
    default:
      return PrepareFlat();
  }
}

absl::Status BatchJob::PrepareFlat() {
  std::vector<int64_t> sizes;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    TensorJob& tensor = tensors_[t];
    sizes.push_back(kind_ == CollectiveKind::kBarrier ? 0 : SizeBytes(tensor.spec()));
    places_[t] = tensor.output;
    tensor.result.output_bytes = sizes.back();
    tensor.result.output_shape = tensor.spec().shape;
  }
  flat_ = LayOutFlat(sizes);
  if (fused()) scratch_bytes_ = flat_.total_bytes;
  return absl::OkStatus();
}

void BatchJob::PackFlat() {
  const bool reduces = kind_ == CollectiveKind::kAllreduce;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const TensorSpec& spec = tensors_[t].spec();
    if (!reduces && spec.root_rank != context_.rank) continue;  // a broadcast has one source
    std::byte* to = fused() ? scratch_.data() + flat_.slots[t].offset_bytes : places_[t];
    CopyAndScale(spec, reduces ? spec.prescale_factor : 1.0, to, tensors_[t].input,
                 flat_.slots[t].size_bytes);
  }
}

void BatchJob::PackReducescatter() {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const TensorSpec& spec = tensors_[t].spec();
    int64_t from = 0;
    for (size_t r = 0; r < parts_[t].size(); ++r) {
      const int64_t to = fused() ? blocks_.slots[r][t].offset_bytes : from;
      CopyAndScale(spec, spec.prescale_factor, scratch_.data() + to, tensors_[t].input + from,
                   parts_[t][r]);
      from += parts_[t][r];
    }
  }
}

CollectiveArgs BatchJob::Payload(absl::Span<std::byte> scratch) {
  COORDD_CHECK(static_cast<int64_t>(scratch.size()) >= scratch_bytes_);
  scratch_ = scratch.subspan(0, static_cast<size_t>(scratch_bytes_));
  const TensorJob& first = tensors_.front();
  const size_t self = static_cast<size_t>(context_.rank);
  const auto output_bytes = static_cast<size_t>(first.result.output_bytes);
  const auto input_bytes =
      static_cast<size_t>(kind_ == CollectiveKind::kBarrier ? 0 : SizeBytes(first.spec()));
  CollectiveArgs args = Args();
  args.input = {first.input, input_bytes};
  args.output = {places_.front(), output_bytes};
  switch (kind_) {
    case CollectiveKind::kBarrier:
      args.input = {};
      args.output = {};
      break;
    case CollectiveKind::kAllreduce:
      // A single tensor without a factor is read where it lies.
      if (fused() || first.spec().prescale_factor != 1.0) {
        PackFlat();
        if (fused()) args.output = scratch_;
        args.input = args.output;
      }
      break;
    case CollectiveKind::kBroadcast:
      PackFlat();
      if (fused()) args.output = scratch_;
      args.input = {};
      break;
    case CollectiveKind::kAllgather:
      args.output_block_bytes = fused() ? blocks_.block_bytes : parts_.front();
      if (!fused()) break;
      for (size_t t = 0; t < tensors_.size(); ++t) {
        const FusedSlot& slot = blocks_.slots[self][t];
        Copy(scratch_.data() + slot.offset_bytes, tensors_[t].input, slot.size_bytes);
      }
      args.output = scratch_;
      args.input = scratch_.subspan(static_cast<size_t>(blocks_.block_offset_bytes[self]),
                                    static_cast<size_t>(blocks_.block_bytes[self]));
      break;
    case CollectiveKind::kReducescatter:
      args.input_block_bytes = fused() ? blocks_.block_bytes : parts_.front();
      if (scratch_bytes_ == 0) break;
      PackReducescatter();
      args.input =
          fused() ? scratch_.subspan(0, static_cast<size_t>(blocks_.total_bytes)) : scratch_;
      if (fused()) args.output = scratch_.subspan(static_cast<size_t>(blocks_.total_bytes));
      break;
    case CollectiveKind::kAlltoall: {
      const int64_t row_bytes = RowBytes(first.spec());
      for (int64_t rows : first.splits) args.input_block_bytes.push_back(rows * row_bytes);
      for (int64_t rows : received_sizes_) args.output_block_bytes.push_back(rows * row_bytes);
      break;
    }
    default:
      break;
  }
  return args;
}

void BatchJob::UnpackFlat() {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const TensorSpec& spec = tensors_[t].spec();
    const int64_t bytes = flat_.slots[t].size_bytes;
    const std::byte* from = fused() ? scratch_.data() + flat_.slots[t].offset_bytes : places_[t];
    CopyResult(spec, places_[t], from, bytes);
  }
}

void BatchJob::UnpackAllgather() {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    std::byte* to = places_[t];
    for (size_t r = 0; r < parts_[t].size(); ++r) {
      Copy(to, scratch_.data() + blocks_.slots[r][t].offset_bytes, parts_[t][r]);
      to += parts_[t][r];
    }
  }
}

void BatchJob::UnpackReducescatter() {
  const size_t self = static_cast<size_t>(context_.rank);
  for (size_t t = 0; t < tensors_.size(); ++t) {
    // The block of this rank begins at slot 0's offset in the input and at 0 in the output region.
    const std::byte* from = fused() ? scratch_.data() + blocks_.total_bytes +
                                          blocks_.slots[self][t].offset_bytes -
                                          blocks_.block_offset_bytes[self]
                                    : places_[t];
    CopyResult(tensors_[t].spec(), places_[t], from, parts_[t][self]);
  }
}

void BatchJob::Unpack() {
  switch (kind_) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kBroadcast:
      UnpackFlat();
      break;
    case CollectiveKind::kAllgather:
      if (fused()) UnpackAllgather();
      break;
    case CollectiveKind::kReducescatter:
      UnpackReducescatter();
      break;
    default:
      break;
  }
  for (TensorJob& tensor : tensors_) {
    tensor.result.generation = context_.generation;
    tensor.result.size = context_.size;
  }
}

}  // namespace coordd
