#include "worker/numeric/integer_average.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace coordd {
namespace {

template <typename T>
T Average(DataType dtype, T sum, int32_t divisor, double factor = 1.0) {
  T result{};
  CopyAveraged(dtype, factor, divisor, reinterpret_cast<std::byte*>(&result),
               reinterpret_cast<const std::byte*>(&sum), 1);
  return result;
}

TEST(IntegerAverage, IsExactForEveryDivisor) {
  for (int32_t divisor = 1; divisor <= 5000; ++divisor)
    EXPECT_EQ(Average<int32_t>(DataType::kInt32, divisor * 7, divisor), 7);
}

TEST(IntegerAverage, TruncatesTowardZero) {
  EXPECT_EQ(Average<int32_t>(DataType::kInt32, 7, 2), 3);
  EXPECT_EQ(Average<int32_t>(DataType::kInt32, -7, 2), -3);
  EXPECT_EQ(Average<int8_t>(DataType::kInt8, -128, 3), -42);
}

TEST(IntegerAverage, KeepsLargeIntegersExact) {
  const int64_t large = (int64_t{1} << 62) + 2;
  EXPECT_EQ(Average<int64_t>(DataType::kInt64, large, 2), large / 2);
  const uint64_t huge = std::numeric_limits<uint64_t>::max() - 1;
  EXPECT_EQ(Average<uint64_t>(DataType::kUint64, huge, 2), huge / 2);
}

TEST(IntegerAverage, IsZeroWhenTheDivisorExceedsTheType) {
  EXPECT_EQ(Average<uint8_t>(DataType::kUint8, 255, 256), 0);
  EXPECT_EQ(Average<int8_t>(DataType::kInt8, -128, 1000), 0);
}

TEST(IntegerAverage, ScalesInFloat64AndSaturates) {
  EXPECT_EQ(Average<int32_t>(DataType::kInt32, 9, 2, 4.0), 18);
  EXPECT_EQ(Average<int8_t>(DataType::kInt8, 100, 2, 4.0), 127);
  EXPECT_EQ(Average<uint8_t>(DataType::kUint8, 100, 2, -4.0), 0);
}

}  // namespace
}  // namespace coordd
