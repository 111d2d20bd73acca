#include "worker/gpu/nccl/nccl_operator.h"

#include <cstring>

namespace coordd {
namespace {

// As the type has it: the upper half of a float32 is a bfloat16.
uint64_t ScalarOf(NcclType type, double factor) {
  uint64_t bits = 0;
  if (type == NcclType::kFloat64) {
    std::memcpy(&bits, &factor, sizeof(factor));
    return bits;
  }
  const float single = static_cast<float>(factor);
  std::memcpy(&bits, &single, sizeof(single));
  return type == NcclType::kBfloat16 ? bits >> 16 : bits;
}

}  // namespace

NcclOperator::NcclOperator(const NcclFunctions& nccl, NcclComm comm, NcclReduction by,
                           double input_factor, int32_t size)
    : nccl_(nccl), comm_(comm), by_(by) {
  if (input_factor == 1.0) return;
  if (input_factor == 1.0 / size) {
    by_.op = NcclOp::kAverage;
    return;
  }
  uint64_t scalar = ScalarOf(by.type, input_factor);
  result_ = nccl_.RedOpCreatePreMulSum(&by_.op, &scalar, by_.type, kNcclScalarHostImmediate, comm_);
  made_ = result_ == NcclResult::kSuccess;
}

NcclOperator::~NcclOperator() {
  if (made_) nccl_.RedOpDestroy(by_.op, comm_);
}

}  // namespace coordd
