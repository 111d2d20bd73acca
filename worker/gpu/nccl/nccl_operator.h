// What NCCL reduces with, in one call. (io)
#pragma once

#include <cstdint>

#include "worker/gpu/nccl/nccl_api.h"

namespace coordd {

// Lives as long as the calls of NCCL that are given it: NCCL copies it there. Of the thread that
// may call into the communicator (NcclCommunicator::Call).
class NcclOperator {
 public:
  // `input_factor` as CollectiveArgs'; other than 1 only for a sum of float32, float64 or bfloat16,
  // which have it exactly. `size`: of the communicator.
  NcclOperator(const NcclFunctions& nccl, NcclComm comm, NcclReduction by, double input_factor,
               int32_t size);
  ~NcclOperator();
  NcclOperator(const NcclOperator&) = delete;
  NcclOperator& operator=(const NcclOperator&) = delete;

  NcclResult result() const { return result_; }  // of making it; to be looked at first
  NcclReduction get() const { return by_; }

 private:
  const NcclFunctions& nccl_;
  const NcclComm comm_;
  NcclReduction by_;
  NcclResult result_ = NcclResult::kSuccess;
  bool made_ = false;
};

}  // namespace coordd
