// Sums with a factor, for fake_nccl.so.
#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "tests/support/gpu/fake_nccl.h"
#include "tests/support/gpu/fake_nccl_comm.h"
#include "tests/support/gpu/fake_nccl_rules.h"
#include "worker/numeric/reduce_kernels.h"

using namespace coordd;

namespace {

std::atomic<long> multiplied_count = 0;

double FactorOf(NcclType type, const void* scalar) {
  if (type == NcclType::kFloat64) {
    double factor = 0;
    std::memcpy(&factor, scalar, sizeof(factor));
    return factor;
  }
  uint32_t bits = 0;
  if (type == NcclType::kFloat32) std::memcpy(&bits, scalar, 4);
  if (type == NcclType::kBfloat16) std::memcpy(reinterpret_cast<char*>(&bits) + 2, scalar, 2);
  float factor = 0;
  std::memcpy(&factor, &bits, sizeof(factor));
  return static_cast<double>(factor);
}

}  // namespace

namespace coordd {

// As hostToDevRedOp: an average of floating point is a sum of what was multiplied.
const char* ResolveOperator(FakeComm& comm, FakeCall& call) {
  if (call.op <= NcclOp::kMin) return nullptr;
  if (call.type != NcclType::kFloat32 && call.type != NcclType::kFloat64 &&
      call.type != NcclType::kBfloat16)
    return "a factor of a type in which it is not exact";
  ++multiplied_count;
  if (call.op == NcclOp::kAverage) {
    call.input_factor = 1.0 / comm.size;
  } else {
    std::lock_guard lock(comm.mu);
    const auto made = comm.operators.find(call.op);
    if (made == comm.operators.end()) return "an operator that was not made, or is gone";
    if (made->second.first != call.type) return "an operator that was made for another type";
    call.input_factor = made->second.second;
  }
  call.op = NcclOp::kSum;
  return nullptr;
}

const char* Multiplied(const FakeCall& call, DataType dtype, size_t bytes,
                       std::vector<std::byte>* place) {
  const auto* input = static_cast<const std::byte*>(call.input);
  if (call.input_factor == 1.0) return reinterpret_cast<const char*>(input);
  place->resize(bytes);
  CopyScaled(dtype, call.input_factor, place->data(), input,
             static_cast<int64_t>(bytes) / SizeOf(dtype));
  return reinterpret_cast<const char*>(place->data());
}

}  // namespace coordd

extern "C" {

long fake_nccl_multiplied_calls() { return multiplied_count; }

NcclResult ncclRedOpCreatePreMulSum(NcclOp* op, void* scalar, NcclType type, int residence,
                                    NcclComm handle) {
  FakeComm& comm = *handle->comm;
  if (!comm.initialised || comm.polls > 0)
    return Refuse("ncclRedOpCreatePreMulSum while NCCL is busy");
  if (residence != kNcclScalarHostImmediate) return Refuse("a scalar that is not of the host");
  std::lock_guard lock(comm.mu);
  // Above NCCL's own five.
  *op = static_cast<NcclOp>(5 + comm.operators_made++);
  comm.operators[*op] = {type, FactorOf(type, scalar)};
  return NcclResult::kSuccess;
}
NcclResult ncclRedOpDestroy(NcclOp op, NcclComm handle) {
  std::lock_guard lock(handle->comm->mu);
  if (handle->comm->operators.erase(op) == 0)
    return Refuse("ncclRedOpDestroy of what is no operator");
  return NcclResult::kSuccess;
}

}  // extern "C"
