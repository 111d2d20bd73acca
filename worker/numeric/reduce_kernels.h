// Arithmetic on arrays of every dtype. PURE; any thread.
//
// Results depend on the operands alone, to the bit and on every machine, and each operator is
// commutative to the bit, so that two ranks that combine the same two operands agree:
//   integers        sum and product wrap around (two's complement).
//   bool            a byte that is not 0 is true; sum = max = or, product = min = and; gives 0
//   or 1. floating point  min and max are IEEE 754-2019 minimum and maximum: a NaN propagates, -0 <
//   +0.
//                   A NaN result of any operator is the one positive quiet NaN.
//   float16,        computed in float32, rounded to nearest even once per call. What is too large
//   bfloat16,       becomes infinity, and in float8_e4m3fn, which has none, 448
//   (worker/numeric/float8.h). float8
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/protocol/types.h"

namespace coordd {

// dst[i] = op(a[i], b[i]) for `count` elements. `dst` may be equal to `a` or `b`, else they do not
// overlap. No alignment is needed. REQUIRES: op is kSum, kMin, kMax or kProduct.
void Reduce(DataType dtype, ReduceOp op, std::byte* dst, const std::byte* a, const std::byte* b,
            int64_t count);

// Sets dst[i] to op(dst[i], src[i]).
inline void Reduce(DataType dtype, ReduceOp op, std::byte* dst, const std::byte* src,
                   int64_t count) {
  Reduce(dtype, op, dst, dst, src, count);
}

// dst[i] = also[i] = op(a[i], b[i]): each result is stored twice while it is in a register. Each of
// `dst` and `also` may be equal to `a` or `b`, else none overlap. REQUIRES: as Reduce.
void ReduceTwice(DataType dtype, ReduceOp op, std::byte* dst, std::byte* also, const std::byte* a,
                 const std::byte* b, int64_t count);

// dst[i] = op over the sources, in their order; float16, bfloat16 and float8 are rounded once.
// `dst` may be equal to any source, else they do not overlap. Two sources: as Reduce. REQUIRES: at
// least one source; op as above.
void ReduceAll(DataType dtype, ReduceOp op, std::byte* dst,
               absl::Span<const std::byte* const> sources, int64_t count);

// dst[i] = the operand that changes no other: 0 for a sum (-0 in floating point, since -0 + +0 is
// not -0), 1 for a product, the largest or smallest value of the type, or infinity, for a minimum
// or maximum. REQUIRES: op as above.
void FillIdentity(DataType dtype, ReduceOp op, std::byte* dst, int64_t count);

// dst[i] = src[i] * factor; a factor of 1 copies exactly. `dst` may be equal to `src`. Integers
// multiply in float64, truncate toward zero and saturate at the bounds of their type (a NaN gives
// 0); float16, bfloat16 and float8 multiply in float32, float32 too, with the factor rounded to it.
// bool is the truth of the product.
void CopyScaled(DataType dtype, double factor, std::byte* dst, const std::byte* src, int64_t count);

// Multiplies in place.
inline void Scale(DataType dtype, double factor, std::byte* buffer, int64_t count) {
  CopyScaled(dtype, factor, buffer, buffer, count);
}

}  // namespace coordd
