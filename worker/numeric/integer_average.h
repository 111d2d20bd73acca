// Averages of integers. PURE; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/protocol/types.h"

namespace coordd {

bool IsInteger(DataType dtype);

// dst[i] = src[i] * factor / divisor, truncated toward zero; exact when the factor is 1.
// Multiplying by 1 / divisor instead would make an average of 49 sevens six. `dst` may be equal to
// `src`. REQUIRES: IsInteger(dtype), divisor > 0.
void CopyAveraged(DataType dtype, double factor, int32_t divisor, std::byte* dst,
                  const std::byte* src, int64_t count);

}  // namespace coordd
