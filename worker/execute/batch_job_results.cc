// The results of a BatchJob: how they are scaled, and which tensor's element lies where.
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/execute/batch_job.h"
#include "worker/gpu/nccl/nccl_route.h"
#include "worker/numeric/integer_average.h"

namespace coordd {
namespace {

std::string ElementOf(const TensorSpec& spec, int64_t offset_bytes) {
  return absl::StrCat("tensor ", spec.name, ", element ", offset_bytes / SizeOf(spec.dtype));
}

bool Holds(const FusedRange& slot, int64_t offset_bytes) {
  return offset_bytes >= slot.offset_bytes && offset_bytes < slot.offset_bytes + slot.size_bytes;
}

}  // namespace

double BatchJob::FactorOf(const TensorSpec& spec) const {
  return spec.postscale_factor / (spec.op == ReduceOp::kAverage ? context_.size : 1);
}

// What is fused is scaled while it is packed and unpacked, which is for nothing.
void BatchJob::LeaveScalingToNccl(const DeviceDecision& decision) {
  const TensorSpec& spec = tensors_.front().spec();
  if (fused() || !NcclMultiplies(spec, context_.size, decision)) return;
  scaling_ = {.by_backend = true, .input_factor = spec.prescale_factor * FactorOf(spec)};
}

// The tensors of a batch agree in it.
void BatchJob::AskToScale(CollectiveArgs& args) {
  const TensorSpec& spec = tensors_.front().spec();
  if (on_device() || IsInteger(spec.dtype) || spec.dtype == DataType::kBool) return;
  args.scale = FactorOf(spec);
  if (args.scale != 1.0) args.scaled = &scaling_.by_backend;
}

void BatchJob::CopyResult(const TensorSpec& spec, std::byte* to, const std::byte* from,
                          int64_t bytes) {
  if (!Reduces(kind_) || scaling_.by_backend) return memory_.Copy(to, from, bytes);
  if (spec.op != ReduceOp::kAverage || !IsInteger(spec.dtype))
    return memory_.CopyAndScale(spec, FactorOf(spec), to, from, bytes);
  memory_.Move({.kind = TensorMove::Kind::kAverage,
                .dtype = spec.dtype,
                .factor = spec.postscale_factor,
                .divisor = context_.size,
                .to = to,
                .from = from,
                .bytes = bytes});
}

std::string BatchJob::ElementAt(int64_t offset_bytes) const {
  if (!fused()) return ElementOf(tensors_.front().spec(), offset_bytes);
  const auto self = static_cast<size_t>(context_.rank);
  const bool gathers = kind_ == CollectiveKind::kAllgather;
  const bool scatters = kind_ == CollectiveKind::kReducescatter;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const TensorSpec& spec = tensors_[t].spec();
    if (gathers) {
      int64_t before = 0;  // what lower ranks have of the result
      for (size_t r = 0; r < parts_[t].size(); before += parts_[t][r++]) {
        const FusedRange& slot = blocks_.slots[r][t];
        if (Holds(slot, offset_bytes))
          return ElementOf(spec, before + offset_bytes - slot.offset_bytes);
      }
      continue;
    }
    // The output of a reducescatter is this rank's block alone.
    const FusedRange& slot = scatters ? blocks_.slots[self][t] : flat_.slots[t];
    const int64_t at = offset_bytes + (scatters ? blocks_.block_offset_bytes[self] : 0);
    if (Holds(slot, at)) return ElementOf(spec, at - slot.offset_bytes);
  }
  return absl::StrCat("the space between two of ", tensors_.size(), " tensors from ",
                      tensors_.front().spec().name, " on");
}

}  // namespace coordd
