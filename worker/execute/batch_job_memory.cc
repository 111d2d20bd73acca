// How a BatchJob moves bytes: at once on the host; on a device as a note of what a stream is to do.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/execute/batch_job.h"
#include "worker/numeric/integer_average.h"

namespace coordd {
namespace {

absl::Status NoMemory(const TensorSpec& spec, int64_t bytes, absl::string_view why = "") {
  return absl::ResourceExhaustedError(absl::StrCat("tensor ", spec.name,
                                                   ": no memory for a result of ", bytes, " bytes",
                                                   why.empty() ? "" : ": ", why));
}

}  // namespace

void BatchJob::Move(const TensorMove& move) {
  if (move.bytes == 0) return;
  if (move.kind == TensorMove::Kind::kCopy && move.to == move.from) return;
  if (on_device_) {
    moves_.push_back(move);
  } else {
    RunOnHost(move);
  }
}

void BatchJob::Copy(std::byte* to, const std::byte* from, int64_t bytes) {
  Move({.to = to, .from = from, .bytes = bytes});
}

void BatchJob::CopyAndScale(const TensorSpec& spec, double factor, std::byte* to,
                            const std::byte* from, int64_t bytes) {
  if (factor == 1.0) return Copy(to, from, bytes);
  Move({.kind = TensorMove::Kind::kScale,
        .dtype = spec.dtype,
        .factor = factor,
        .to = to,
        .from = from,
        .bytes = bytes});
}

void BatchJob::FillIdentity(const TensorSpec& spec, std::byte* to, int64_t bytes) {
  Move({.kind = TensorMove::Kind::kFill,
        .dtype = spec.dtype,
        .op = spec.op == ReduceOp::kAverage ? ReduceOp::kSum : spec.op,
        .to = to,
        .bytes = bytes});
}

double BatchJob::FactorOf(const TensorSpec& spec) const {
  return spec.postscale_factor / (spec.op == ReduceOp::kAverage ? context_.size : 1);
}

// The tensors of a batch agree in it.
void BatchJob::AskToScale(CollectiveArgs& args) {
  const TensorSpec& spec = tensors_.front().spec();
  if (on_device_ || IsInteger(spec.dtype) || spec.dtype == DataType::kBool) return;
  args.scale = FactorOf(spec);
  if (args.scale != 1.0) args.scaled = &scaled_;
}

void BatchJob::CopyResult(const TensorSpec& spec, std::byte* to, const std::byte* from,
                          int64_t bytes) {
  if (!Reduces(kind_) || scaled_) return Copy(to, from, bytes);
  if (spec.op != ReduceOp::kAverage || !IsInteger(spec.dtype))
    return CopyAndScale(spec, FactorOf(spec), to, from, bytes);
  Move({.kind = TensorMove::Kind::kAverage,
        .dtype = spec.dtype,
        .factor = spec.postscale_factor,
        .divisor = context_.size,
        .to = to,
        .from = from,
        .bytes = bytes});
}

void BatchJob::UseDevice(int32_t device, AllocateOnDevice allocate, DiscardOnDevice discard) {
  on_device_ = true;
  device_ = device;
  allocate_ = std::move(allocate);
  discard_ = std::move(discard);
}

absl::StatusOr<std::byte*> BatchJob::Discard(const TensorSpec& spec, int64_t bytes) {
  if (on_device_) {
    absl::StatusOr<std::byte*> place = discard_(bytes);
    if (!place.ok()) return NoMemory(spec, bytes, place.status().message());
    return place;
  }
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<std::byte[]> memory, Allocate(spec, bytes));
  discarded_.push_back(std::move(memory));
  return discarded_.back().get();
}

absl::StatusOr<std::shared_ptr<std::byte[]>> BatchJob::Allocate(const TensorSpec& spec,
                                                                int64_t bytes) {
  if (on_device_) {
    absl::StatusOr<std::shared_ptr<std::byte[]>> made = allocate_(bytes);
    if (!made.ok()) return NoMemory(spec, bytes, made.status().message());
    return made;
  }
  std::shared_ptr<std::byte[]> made = AllocateOnHost(bytes);
  if (made == nullptr) return NoMemory(spec, bytes);
  return made;
}

}  // namespace coordd
