#include "worker/gpu/nccl/nccl_route.h"

#include "worker/gpu/nccl/nccl_api.h"
#include "worker/numeric/integer_average.h"

namespace coordd {

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

}  // namespace coordd
