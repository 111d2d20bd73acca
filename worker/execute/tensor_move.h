// One piece of packing or unpacking: bytes to be copied, scaled or filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/protocol/types.h"

namespace coordd {

struct TensorMove {
  enum class Kind : uint8_t {
    kCopy,
    kScale,    // to[i] = from[i] * factor, as CopyScaled
    kAverage,  // to[i] = from[i] * factor / divisor, as CopyAveraged
    kFill,     // to[i] = the operand of `op` that changes no other
  };
  Kind kind = Kind::kCopy;
  DataType dtype = DataType::kUint8;
  ReduceOp op = ReduceOp::kNone;
  double factor = 1.0;
  int32_t divisor = 1;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;  // equal to `to`, or not overlapping
  int64_t bytes = 0;
};

// REQUIRES: both are host memory.
void RunOnHost(const TensorMove& move);

// For results that their readers share; 64-byte aligned. nullptr: there is no memory.
std::shared_ptr<std::byte[]> AllocateOnHost(int64_t bytes);

}  // namespace coordd
