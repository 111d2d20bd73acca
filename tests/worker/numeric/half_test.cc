#include "worker/numeric/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace coordd {
namespace {

// The value of binary16 bits by its definition, in float64.
double Float16ByDefinition(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

// Rounds to nearest, ties to even, by comparing with the two neighbours among the 65536.
uint16_t NearestFloat16(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(static_cast<double>(value));
  uint16_t low = 0;  // largest that is not above; magnitudes are ordered like their bits
  uint16_t high = 0x7c00;
  while (high - low > 1) {
    const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (Float16ByDefinition(middle) <= magnitude ? low : high) = middle;
  }
  if (std::isinf(value)) return sign | 0x7c00;
  // Above the largest number the next place would be 65536.
  const double above = high == 0x7c00 ? 65536.0 : Float16ByDefinition(high);
  const double to_low = magnitude - Float16ByDefinition(low);
  const double to_high = above - magnitude;
  const bool up = to_high < to_low || (to_high == to_low && low % 2 == 1);
  return sign | (up ? high : low);
}

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

TEST(Float16, WidensAll65536ValuesExactly) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint16_t half = static_cast<uint16_t>(i);
    const float widened = Float16ToFloat32(half);
    const double expected = Float16ByDefinition(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(widened)) << i;
    } else {
      EXPECT_EQ(Bits(widened), Bits(static_cast<float>(expected))) << i;
    }
  }
}

TEST(Float16, NarrowsWhatItWidened) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint16_t half = static_cast<uint16_t>(i);
    const bool nan = (half & 0x7fff) > 0x7c00;
    const uint16_t expected = nan ? static_cast<uint16_t>((half & 0x8000) | 0x7e00) : half;
    EXPECT_EQ(Float32ToFloat16(Float16ToFloat32(half)), expected) << i;
  }
}

TEST(Float16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t i = 0; i < 0x7c00; ++i) {
    const float low = static_cast<float>(Float16ByDefinition(static_cast<uint16_t>(i)));
    const float high = i + 1 == 0x7c00
                           ? 65536.0f
                           : static_cast<float>(Float16ByDefinition(static_cast<uint16_t>(i + 1)));
    const float middle = (low + high) / 2;  // exact in float32
    for (float value : {middle, std::nextafter(middle, low), std::nextafter(middle, high)}) {
      EXPECT_EQ(Float32ToFloat16(value), NearestFloat16(value)) << value;
      EXPECT_EQ(Float32ToFloat16(-value), NearestFloat16(-value)) << -value;
    }
  }
}

TEST(Float16, OverflowsToInfinityAndUnderflowsToZero) {
  EXPECT_EQ(Float32ToFloat16(65519.996f), 0x7bff);
  EXPECT_EQ(Float32ToFloat16(65520.0f), 0x7c00);
  EXPECT_EQ(Float32ToFloat16(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(Float32ToFloat16(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(Float32ToFloat16(0x1p-25f), 0);  // a tie with the smallest subnormal: even
  EXPECT_EQ(Float32ToFloat16(std::nextafter(0x1p-25f, 1.0f)), 1);
  EXPECT_EQ(Float32ToFloat16(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(Float32ToFloat16(-0.0f), 0x8000);
}

TEST(Bfloat16, NarrowsWhatItWidened) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint16_t value = static_cast<uint16_t>(i);
    EXPECT_EQ(Bits(Bfloat16ToFloat32(value)), i << 16);
    const bool nan = (value & 0x7fff) > 0x7f80;
    const uint16_t expected = nan ? static_cast<uint16_t>((value & 0x8000) | 0x7fc0) : value;
    EXPECT_EQ(Float32ToBfloat16(Bfloat16ToFloat32(value)), expected) << i;
  }
}

TEST(Bfloat16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t i = 0; i < 0x7f80; ++i) {
    const uint16_t even = static_cast<uint16_t>(i + i % 2);
    EXPECT_EQ(Float32ToBfloat16(std::bit_cast<float>((i << 16) | 0x8000)), even) << i;
    EXPECT_EQ(Float32ToBfloat16(std::bit_cast<float>((i << 16) | 0x7fff)), i) << i;
    EXPECT_EQ(Float32ToBfloat16(std::bit_cast<float>((i << 16) | 0x8001)), i + 1) << i;
  }
  EXPECT_EQ(Float32ToBfloat16(std::numeric_limits<float>::max()), 0x7f80);  // infinity
}

}  // namespace
}  // namespace coordd
