// What the check of results takes for right, and what not.
#include "worker/host/result_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/worker/support/reference.h"
#include "worker/numeric/reduce_kernels.h"

namespace coordd {
namespace {

constexpr double kTolerance = 1e-12;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<const std::byte*> Pointers(const std::vector<Bytes>& inputs) {
  std::vector<const std::byte*> pointers;
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  return pointers;
}

template <typename T>
Bytes BytesFrom(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// The first wrong one of `got`, one element per rank and index.
int64_t FirstWrong(ReduceOp op, const std::vector<std::vector<float>>& inputs,
                   const std::vector<float>& got, double tolerance = kTolerance) {
  std::vector<Bytes> bytes;
  for (const auto& input : inputs) bytes.push_back(BytesFrom(input));
  Bytes expected(got.size() * sizeof(float));
  return FirstWrongReduction(DataType::kFloat32, op, tolerance, Pointers(bytes),
                             BytesFrom(got).data(), static_cast<int64_t>(got.size()),
                             expected.data());
}

// Every dtype and operator, reduced by the kernels in two orders; then one element is off by a bit
// that no rounding explains.
TEST(ResultReference, AgreesWithTheKernelsAndSeesAChangedElement) {
  constexpr int32_t kRanks = 5;
  constexpr int64_t kCount = 300, kWrong = 123;
  for (DataType dtype : kAllDataTypes) {
    for (ReduceOp op : kAllReduceOps) {
      SCOPED_TRACE(absl::string_view(Name(dtype)));
      SCOPED_TRACE(absl::string_view(Name(op)));
      std::vector<Bytes> inputs;
      for (int32_t r = 0; r < kRanks; ++r) inputs.push_back(TestInput(dtype, r, kCount, 7));
      const std::vector<const std::byte*> pointers = Pointers(inputs);
      Bytes got(inputs[0].size()), backwards = inputs[kRanks - 1], expected(got.size());
      ReduceAll(dtype, op, got.data(), pointers, kCount);
      for (int32_t r = kRanks - 2; r >= 0; --r)
        Reduce(dtype, op, backwards.data(), inputs[static_cast<size_t>(r)].data(), kCount);
      for (const Bytes& result : {got, backwards})
        EXPECT_EQ(FirstWrongReduction(dtype, op, kTolerance, pointers, result.data(), kCount,
                                      expected.data()),
                  -1);
      // The highest byte of the element: sign, exponent or the largest digits.
      const auto size = static_cast<size_t>(SizeOf(dtype));
      std::byte& top = got[(kWrong + 1) * size - 1];
      top = dtype == DataType::kBool ? top ^ std::byte{1} : top ^ std::byte{0x55};
      EXPECT_EQ(
          FirstWrongReduction(dtype, op, kTolerance, pointers, got.data(), kCount, expected.data()),
          kWrong);
    }
  }
}

TEST(ResultReference, AToleranceIsRelativeToWhatWasAdded) {
  // The terms cancel each other; what is left is as exact as they were.
  EXPECT_EQ(FirstWrong(ReduceOp::kSum, {{1e8f}, {1.f}, {-1e8f}}, {0.f}), -1);
  EXPECT_EQ(FirstWrong(ReduceOp::kSum, {{1e8f}, {1.f}, {-1e8f}}, {1000.f}), 0);
  EXPECT_EQ(FirstWrong(ReduceOp::kSum, {{1.f, 1.f}, {1.f, 1.f}}, {2.f, 2.001f}), 1);
  EXPECT_EQ(FirstWrong(ReduceOp::kSum, {{1.f, 1.f}, {1.f, 1.f}}, {2.f, 2.001f}, 0.01), -1);
  EXPECT_EQ(FirstWrong(ReduceOp::kMax, {{1.f}, {2.f}}, {1.999f}, 0.01), 0) << "max is exact";
}

TEST(ResultReference, WhatIsNotFiniteIsJudgedWhereItsOrderDoesNotMatter) {
  const float nan = std::nanf("");
  EXPECT_EQ(FirstWrong(ReduceOp::kSum, {{nan}, {1.f}}, {nan}), -1);
  EXPECT_EQ(FirstWrong(ReduceOp::kSum, {{nan}, {1.f}}, {1.f}), 0);
  EXPECT_EQ(FirstWrong(ReduceOp::kMin, {{nan}, {1.f}}, {1.f}), 0);
  EXPECT_EQ(FirstWrong(ReduceOp::kSum, {{kInfinity}, {1.f}}, {kInfinity}), -1);
  EXPECT_EQ(FirstWrong(ReduceOp::kSum, {{kInfinity}, {1.f}}, {5.f}), 0);
  EXPECT_EQ(FirstWrong(ReduceOp::kSum, {{1.f}, {1.f}}, {nan}), 0);
  // Finite in one order, infinite in another.
  EXPECT_EQ(FirstWrong(ReduceOp::kSum, {{3e38f}, {3e38f}, {-3e38f}}, {kInfinity}), -1);
  EXPECT_EQ(FirstWrong(ReduceOp::kProduct, {{1e30f}, {1e30f}, {1e-30f}}, {kInfinity}), -1);
}

TEST(ResultReference, WritesElementsExactly) {
  const Bytes large = BytesFrom<uint64_t>({uint64_t{0} - 1});
  EXPECT_EQ(ElementText(DataType::kUint64, large.data(), 0), "18446744073709551615");
  EXPECT_EQ(ElementText(DataType::kInt64, large.data(), 0), "-1");
  EXPECT_EQ(ElementText(DataType::kFloat32, BytesFrom<float>({0.1f}).data(), 0), "0.100000001");
  EXPECT_EQ(ElementText(DataType::kBool, BytesFrom<uint8_t>({7}).data(), 0), "true");
}

}  // namespace
}  // namespace coordd
