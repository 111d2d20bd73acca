// Elements of any dtype as numbers, for checks and examples. PURE.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/protocol/types.h"

namespace coordd {

// Reads an element. The value is exact, except that 64-bit integers beyond 2^53 are rounded.
double ReadElement(DataType dtype, const std::byte* tensor, int64_t index);
// Floating point is rounded to nearest; integers are truncated toward zero. REQUIRES: an integer
// type can hold the value.
void WriteElement(DataType dtype, double value, std::byte* tensor, int64_t index);

// The distance between 1 and the next larger number of the type; 0 for integers and bool.
double Epsilon(DataType dtype);

}  // namespace coordd
