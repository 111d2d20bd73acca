// What a piece of a collective's result has to be, computed in another way than the data plane
// does: one element after the other, in rank order, floating point in float64. PURE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "common/protocol/types.h"

namespace coordd {

// The expected elements are written to `expected`, in the tensor's dtype; the return value is the
// index of the first element of `got` that is wrong, -1 if none is.
//   integers, bool  exact; sums and products wrap around, any byte that is not 0 is true
//   min, max        exact
//   sum             wrong by more than tolerance + (1 + u)^p - 1, of a dtype that rounds by u at
//                   most (half its epsilon), times the sum of the p inputs' magnitudes: relative to
//                   the result, an honest sum whose terms cancel each other would be wrong
//   product         the same times the magnitude of the product
// What depends on the order of the operands is not judged: sums whose partial sums may overflow,
// and products whose partial products may overflow or vanish.
// Floating point is multiplied with `scale` afterwards, which is rounded once more.
// REQUIRES: op is kSum, kMin, kMax or kProduct; one input per rank, in rank order.
int64_t FirstWrongReduction(DataType dtype, ReduceOp op, double tolerance,
                            absl::Span<const std::byte* const> inputs, const std::byte* got,
                            int64_t count, std::byte* expected, double scale = 1.0);

// The text of one element, in as many digits as tell it from every other of its type.
std::string ElementText(DataType dtype, const std::byte* tensor, int64_t index);

}  // namespace coordd
