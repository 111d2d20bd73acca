#include "worker/execute/batch_job.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"
#include "worker/gpu/nccl/nccl_route.h"
#include "worker/interfaces/lanes.h"

namespace coordd {
namespace {

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

}  // namespace

int32_t BatchContext::IndexOf(int32_t rank_in_job) const {
  if (ranks == nullptr) return rank_in_job;
  const auto found = std::lower_bound(ranks->begin(), ranks->end(), rank_in_job);
  COORDD_CHECK(found != ranks->end() && *found == rank_in_job);
  return static_cast<int32_t>(found - ranks->begin());
}

BatchJob::BatchJob(BatchContext context, LaneId lane, int64_t sequence,
                   std::vector<TensorJob> tensors)
    : context_(std::move(context)),
      lane_(lane),
      sequence_(sequence),
      kind_(tensors.front().spec().kind),
      data_lane_(ToInt(lane) < kFirstScheduleLane && FitsNccl(tensors.front().spec())
                     ? DeviceLane(context_.process_set)
                     : lane),
      tensors_(std::move(tensors)),
      destinations_(tensors_.size(), nullptr) {
  TensorJob& first = tensors_.front();
  if (first.absent && HasSplits(kind_)) first.splits.assign(static_cast<size_t>(context_.size), 0);
}

int32_t BatchJob::RootIndex() const {
  const TensorSpec& spec = tensors_.front().spec();
  if (kind_ == CollectiveKind::kSend) return context_.rank;
  if (kind_ == CollectiveKind::kReceive) return context_.IndexOf(spec.peer_rank);
  return HasRoot(kind_) ? context_.IndexOf(spec.root_rank) : -1;
}

CollectiveArgs BatchJob::Args() const {
  const TensorSpec& spec = tensors_.front().spec();
  CollectiveArgs args;
  args.kind = kind_;
  if (IsPairwise(kind_)) args.kind = CollectiveKind::kBroadcast;
  if (kind_ == CollectiveKind::kJoin) args.kind = CollectiveKind::kBarrier;
  args.dtype = spec.dtype;
  args.op = spec.op == ReduceOp::kAverage ? ReduceOp::kSum : spec.op;
  args.lane = data_lane();
  args.sequence = sequence_;
  args.group = context_.process_set;
  args.root = Rank{std::max(RootIndex(), 0)};
  args.input_factor = scaling_.input_factor;
  // A tensor that is staged is on the host by now.
  args.memory = on_device() ? MemoryKind::kCuda : MemoryKind::kHost;
  args.device = device();
  return args;
}

CollectiveArgs BatchJob::SizeExchange() {
  const size_t ranks = static_cast<size_t>(context_.size);
  CollectiveArgs args = Args();
  args.dtype = DataType::kInt64;
  args.memory = MemoryKind::kHost;
  args.device = -1;
  if (kind_ == CollectiveKind::kAllgather || kind_ == CollectiveKind::kGather) {
    for (const TensorJob& tensor : tensors_) sent_sizes_.push_back(tensor.spec().shape[0]);
    if (kind_ == CollectiveKind::kAllgather || is_root()) {
      received_sizes_.resize(sent_sizes_.size() * ranks);
      args.output_block_bytes.assign(ranks, static_cast<int64_t>(Bytes(sent_sizes_).size()));
    }
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
  std::byte*& place = destinations_[static_cast<size_t>(&tensor - tensors_.data())];
  tensor.result.output_bytes = bytes;
  if (tensor.output == nullptr) {
    COORDD_ASSIGN_OR_RETURN(tensor.result.owned_output, memory_.Allocate(tensor.spec(), bytes));
    place = tensor.result.owned_output.get();
    return absl::OkStatus();
  }
  place = tensor.output;
  if (bytes <= tensor.output_capacity_bytes) return absl::OkStatus();
  // The other ranks count on this one: it takes part.
  tensor.status = absl::InvalidArgumentError(absl::StrCat(
      "tensor ", tensor.spec().name, ": the result has ", Counted(bytes, "byte"),
      ", expected at most the ", tensor.output_capacity_bytes, " of the given output"));
  COORDD_ASSIGN_OR_RETURN(place, memory_.Discard(tensor.spec(), bytes));
  return absl::OkStatus();
}

absl::Status BatchJob::PrepareAllgather() {
  if (kind_ == CollectiveKind::kGather && !is_root()) {
    tensors_.front().result.output_shape = {0};
    return absl::OkStatus();
  }
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
  if (NeedsPacking(tensors_.front())) {
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
    case CollectiveKind::kGather:
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
  // Who has the result: a send gives it away, a reduce has it on its root only.
  const bool has_result =
      kind_ != CollectiveKind::kSend && (kind_ != CollectiveKind::kReduce || is_root());
  absl::InlinedVector<int64_t, 16> sizes;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    TensorJob& tensor = tensors_[t];
    sizes.push_back(HasPayload(kind_) ? SizeBytes(tensor.spec()) : 0);
    destinations_[t] = has_result ? tensor.output : nullptr;
    if (has_result && tensor.absent && !fused()) {
      COORDD_ASSIGN_OR_RETURN(destinations_[t], memory_.Discard(tensor.spec(), sizes.back()));
    }
    // The backend reads what its root broadcasts from the place of the result.
    if (kind_ == CollectiveKind::kSend) destinations_[t] = const_cast<std::byte*>(tensor.input);
    tensor.result.output_bytes = has_result ? sizes.back() : 0;
    tensor.result.output_shape = has_result ? tensor.spec().shape : std::vector<int64_t>{0};
  }
  flat_ = LayOutFlat(sizes);
  const bool has_no_place =
      kind_ == CollectiveKind::kReduce && !has_result && NeedsPacking(tensors_.front());
  // One tensor has no padding: ranks that have a place for it use that.
  if (fused()) {
    scratch_bytes_ = flat_.total_bytes;
  } else {
    keeps_input_ = MustKeepInput(0);
    if (has_no_place || keeps_input_) scratch_bytes_ = sizes.front();
  }
  return absl::OkStatus();
}

bool BatchJob::MustKeepInput(size_t t) const {
  const bool in_place = destinations_[t] != nullptr && destinations_[t] == tensors_[t].input;
  return context_.keeps_inputs && Reduces(kind_) && in_place;
}

bool BatchJob::CanUseParts() const {
  if (!fused() || on_device() || kind_ != CollectiveKind::kAllreduce) return false;
  return std::all_of(tensors_.begin(), tensors_.end(), [](const TensorJob& tensor) {
    return !tensor.absent && tensor.spec().prescale_factor == 1.0;
  });
}

void BatchJob::UseParts() {
  in_parts_ = true;
  bool keeps_any = false;
  for (size_t t = 0; t < tensors_.size(); ++t) keeps_any = keeps_any || MustKeepInput(t);
  if (!keeps_any) scratch_bytes_ = 0;
}

std::vector<TensorJob> BatchJob::TakeTensors() {
  std::vector<TensorJob> tensors = std::move(tensors_);
  for (TensorJob& tensor : tensors) {
    tensor.status = absl::OkStatus();
    tensor.result = WorkResult();
  }
  return tensors;
}

void BatchJob::PackFlat() {
  const bool reduces = Reduces(kind_);
  if (!reduces && !is_root()) return;  // a broadcast has one source
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const TensorJob& tensor = tensors_[t];
    const TensorSpec& spec = tensor.spec();
    const int64_t bytes = flat_.slots[t].size_bytes;
    if (tensor.absent) {
      memory_.FillIdentity(spec, FlatSlot(t), bytes);
    } else {
      memory_.CopyAndScale(spec, reduces ? PrescaleOf(spec) : 1.0, FlatSlot(t), tensor.input,
                           bytes);
    }
  }
}

void BatchJob::PackReducescatter() {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const TensorSpec& spec = tensors_[t].spec();
    int64_t from = 0;
    for (size_t r = 0; r < parts_[t].size(); ++r) {
      std::byte* to = scratch_.data() + (fused() ? blocks_.slots[r][t].offset_bytes : from);
      if (tensors_[t].absent) {
        memory_.FillIdentity(spec, to, parts_[t][r]);
      } else {
        memory_.CopyAndScale(spec, PrescaleOf(spec), to, tensors_[t].input + from, parts_[t][r]);
      }
      from += parts_[t][r];
    }
  }
}

absl::Span<std::byte> BatchJob::FlatBuffer() const {
  if (!scratch_.empty()) return scratch_;
  return {destinations_.front(), static_cast<size_t>(flat_.slots.front().size_bytes)};
}

void BatchJob::PayloadOfReduction(CollectiveArgs& args) {
  const TensorJob& first = tensors_.front();
  if (in_parts_) {
    PayloadInParts(args);
  } else if (NeedsPacking(first)) {
    PackFlat();
    args.input = args.output = FlatBuffer();
  } else {
    // A single tensor without a factor is read where it lies.
    args.input = {first.input, static_cast<size_t>(flat_.slots.front().size_bytes)};
    args.output = {FlatSlot(0), args.input.size()};
  }
  if (kind_ == CollectiveKind::kReduce && !is_root()) args.output = {};
}

void BatchJob::PayloadInParts(CollectiveArgs& args) {
  const size_t whole_bytes = static_cast<size_t>(flat_.total_bytes);
  args.input = {nullptr, whole_bytes};
  args.output = scratch_.empty() ? absl::Span<std::byte>(nullptr, whole_bytes) : scratch_;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const FusedRange& slot = flat_.slots[t];
    const size_t bytes = static_cast<size_t>(slot.size_bytes);
    if (bytes == 0) continue;
    args.input_parts.push_back({slot.offset_bytes, {tensors_[t].input, bytes}});
    if (scratch_.empty())
      args.output_parts.push_back({slot.offset_bytes, {destinations_[t], bytes}});
  }
}

void BatchJob::PayloadOfAllgather(CollectiveArgs& args) {
  const TensorJob& first = tensors_.front();
  const size_t self = static_cast<size_t>(context_.rank);
  if (!fused()) {
    args.input = {first.input, static_cast<size_t>(SizeBytes(first.spec()))};
    args.output = {destinations_.front(), static_cast<size_t>(first.result.output_bytes)};
    if (!parts_.empty()) args.output_block_bytes = parts_.front();
    return;
  }
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const FusedRange& slot = blocks_.slots[self][t];
    memory_.Copy(scratch_.data() + slot.offset_bytes, tensors_[t].input, slot.size_bytes);
  }
  args.output_block_bytes = blocks_.block_bytes;
  args.output = scratch_;
  args.input = scratch_.subspan(static_cast<size_t>(blocks_.block_offset_bytes[self]),
                                static_cast<size_t>(blocks_.block_bytes[self]));
}

CollectiveArgs BatchJob::Payload(absl::Span<std::byte> scratch) {
  COORDD_CHECK(static_cast<int64_t>(scratch.size()) >= scratch_bytes_);
  scratch_ = scratch.subspan(0, static_cast<size_t>(scratch_bytes_));
  const TensorJob& first = tensors_.front();
  CollectiveArgs args = Args();
  switch (kind_) {
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
      break;
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduce:
      PayloadOfReduction(args);
      AskToScale(args);
      break;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kSend:
    case CollectiveKind::kReceive:
      PackFlat();
      args.output = FlatBuffer();
      break;
    case CollectiveKind::kAllgather:
    case CollectiveKind::kGather:
      PayloadOfAllgather(args);
      break;
    case CollectiveKind::kReducescatter:
      args.input = {first.input, static_cast<size_t>(SizeBytes(first.spec()))};
      args.output = {destinations_.front(), static_cast<size_t>(first.result.output_bytes)};
      args.input_block_bytes = fused() ? blocks_.block_bytes : parts_.front();
      AskToScale(args);
      if (scratch_bytes_ == 0) break;
      PackReducescatter();
      args.input =
          fused() ? scratch_.subspan(0, static_cast<size_t>(blocks_.total_bytes)) : scratch_;
      if (fused()) args.output = scratch_.subspan(static_cast<size_t>(blocks_.total_bytes));
      break;
    case CollectiveKind::kAlltoall: {
      args.input = {first.input, static_cast<size_t>(SizeBytes(first.spec()))};
      args.output = {destinations_.front(), static_cast<size_t>(first.result.output_bytes)};
      const int64_t row_bytes = RowBytes(first.spec());
      for (int64_t rows : first.splits) args.input_block_bytes.push_back(rows * row_bytes);
      for (int64_t rows : received_sizes_) args.output_block_bytes.push_back(rows * row_bytes);
      break;
    }
  }
  return args;
}

void BatchJob::UnpackFlat() {
  if (kind_ == CollectiveKind::kReduce && !is_root()) return;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (!tensors_[t].absent)
      CopyResult(tensors_[t].spec(), destinations_[t], FlatSlot(t), flat_.slots[t].size_bytes);
  }
}

void BatchJob::UnpackJoin() {
  WorkResult& result = tensors_.front().result;
  result.output_bytes = sizeof(last_joined_rank);
  result.output_shape.clear();
  result.owned_output = AllocateOnHost(result.output_bytes);
  memory_.Copy(result.owned_output.get(), reinterpret_cast<const std::byte*>(&last_joined_rank),
               result.output_bytes);
}

void BatchJob::UnpackAllgather() {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t].absent) continue;
    std::byte* to = destinations_[t];
    for (size_t r = 0; r < parts_[t].size(); ++r) {
      memory_.Copy(to, scratch_.data() + blocks_.slots[r][t].offset_bytes, parts_[t][r]);
      to += parts_[t][r];
    }
  }
}

void BatchJob::UnpackReducescatter() {
  const size_t self = static_cast<size_t>(context_.rank);
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t].absent) continue;
    // The block of this rank begins at slot 0's offset in the input and at 0 in the output region.
    const std::byte* from = fused() ? scratch_.data() + blocks_.total_bytes +
                                          blocks_.slots[self][t].offset_bytes -
                                          blocks_.block_offset_bytes[self]
                                    : destinations_[t];
    CopyResult(tensors_[t].spec(), destinations_[t], from, parts_[t][self]);
  }
}

void BatchJob::Unpack() {
  if (std::exchange(unpacked_, true)) return;
  switch (kind_) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      UnpackFlat();
      break;
    case CollectiveKind::kAllgather:
      if (fused()) UnpackAllgather();
      break;
    case CollectiveKind::kReducescatter:
      UnpackReducescatter();
      break;
    case CollectiveKind::kJoin:
      UnpackJoin();
      break;
    case CollectiveKind::kAlltoall:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kGather:
    case CollectiveKind::kSend:
    case CollectiveKind::kReceive:
      break;  // the result is in its place
  }
  for (TensorJob& tensor : tensors_) {
    tensor.result.generation = context_.generation;
    tensor.result.size = context_.size;
  }
}

}  // namespace coordd
