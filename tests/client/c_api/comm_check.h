// What tests of comms share: values, sums of a few of which are exact.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/client/c_api/c_api_check.h"

using Floats = std::vector<float>;

// What `rank` has at `index`.
inline float Value(int rank, int64_t index) {
  return static_cast<float>((rank + 1) * (index % 1009 + 1));
}

inline Floats Input(int rank, int64_t count) {
  Floats values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = Value(rank, i);
  return values;
}

inline float SumAt(int size, int64_t index) { return Value(size * (size + 1) / 2 - 1, index); }
