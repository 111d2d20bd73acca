#include "worker/gpu/nccl/nccl_route.h"

#include <cmath>

#include "worker/gpu/nccl/nccl_api.h"
#include "worker/numeric/integer_average.h"

namespace coordd {
namespace {

// 2^-24: an average over so many ranks. The exponents below it are left to what is reduced.
constexpr double kLeastFactor = 1.0 / (1 << 24);
// So much NCCL moves with its low-latency protocols, of which NVLS has none.
constexpr int64_t kNoSwitchBytes = 64 << 10;

bool IsPowerOfTwo(double factor) {
  int exponent = 0;
  return std::frexp(factor, &exponent) == 0.5;
}

// float16 is left out: what gradients are is next to its least normal number.
bool HasRoom(DataType dtype) {
  return dtype == DataType::kFloat32 || dtype == DataType::kFloat64 || dtype == DataType::kBfloat16;
}

}  // namespace

bool FitsNccl(const TensorSpec& spec) {
  if (spec.memory != MemoryKind::kCuda || !HasPayload(spec.kind)) return false;
  if (!Reduces(spec.kind)) return true;
  if (spec.op == ReduceOp::kAverage)
    return !IsInteger(spec.dtype) && NcclReductionOf(spec.dtype, ReduceOp::kSum).has_value();
  return NcclReductionOf(spec.dtype, spec.op).has_value();
}

bool CarriedByNccl(const TensorSpec& spec, const DeviceDecision& decision) {
  if (!decision.nccl) return false;
  return decision.float8 || !IsFloat8(spec.dtype) || !Reduces(spec.kind);
}

bool NcclMultiplies(const TensorSpec& spec, int32_t size, const DeviceDecision& decision) {
  const bool sums = spec.op == ReduceOp::kSum || spec.op == ReduceOp::kAverage;
  if (!Reduces(spec.kind) || !sums || !HasRoom(spec.dtype) || size < 2) return false;
  // The host's part knows of no factor.
  if (spec.kind == CollectiveKind::kAllreduce && decision.ranks_per_node > 0) return false;
  if (decision.multicast && SizeBytes(spec) > kNoSwitchBytes) return false;
  const double behind = spec.postscale_factor / (spec.op == ReduceOp::kAverage ? size : 1);
  const double factor = spec.prescale_factor * behind;
  return IsPowerOfTwo(spec.prescale_factor) && IsPowerOfTwo(behind) && factor < 1.0 &&
         factor >= kLeastFactor;
}

}  // namespace coordd
