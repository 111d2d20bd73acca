// Test data of every dtype, and what collectives must make of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/protocol/types.h"

namespace coordd {

inline constexpr DataType kAllDataTypes[] = {
    DataType::kUint8,   DataType::kInt8,         DataType::kUint16,    DataType::kInt16,
    DataType::kUint32,  DataType::kInt32,        DataType::kUint64,    DataType::kInt64,
    DataType::kFloat16, DataType::kBfloat16,     DataType::kFloat32,   DataType::kFloat64,
    DataType::kBool,    DataType::kFloat8E4m3fn, DataType::kFloat8E5m2};
inline constexpr ReduceOp kAllReduceOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                             ReduceOp::kProduct};

using Bytes = std::vector<std::byte>;

// The input of `rank`: `count` elements that look random, differ between ranks and `salt`s, and
// need rounding in the floating-point types.
Bytes TestInput(DataType dtype, int32_t rank, int64_t count, int32_t salt);

// As ==, which looks at one std::byte after the other.
bool SameBytes(const Bytes& a, const Bytes& b);

// Empty when `actual` is op over the inputs of all ranks, else what is wrong where. Integers and
// bool are exact (modulo 2^bits), min and max too; a floating-point sum or product of p values of a
// type with unit roundoff u is within (1 + u)^p - 1 + p * 2^-53 of the reference, which is computed
// in float64 itself, relative to the sum of the magnitudes and to the product.
std::string CheckReduced(DataType dtype, ReduceOp op, const std::vector<Bytes>& inputs,
                         const std::byte* actual, int64_t count);

// As float64. REQUIRES: a floating-point type.
double ElementAt(DataType dtype, const std::byte* data, int64_t index);

}  // namespace coordd
