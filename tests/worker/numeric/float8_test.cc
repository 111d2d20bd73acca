#include "worker/numeric/float8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

namespace coordd {
namespace {

// A format by its definition, in float64.
struct Definition {
  const char* name;
  int exponent_bits, fraction_bits;
  int largest;        // the bits of the largest number
  bool has_infinity;  // behind it; else what is too large is the largest number
  float (*widen)(uint8_t);
  uint8_t (*narrow)(float);

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  double ValueOf(int magnitude) const {
    const int exponent = magnitude >> fraction_bits;
    const int fraction = magnitude & ((1 << fraction_bits) - 1);
    if (exponent == 0) return std::ldexp(fraction, 1 - bias() - fraction_bits);
    return std::ldexp((1 << fraction_bits) + fraction, exponent - bias() - fraction_bits);
  }
  // Rounds to nearest, ties to even, by comparing with the two neighbours.
  uint8_t Nearest(float value) const {
    const int sign = std::signbit(value) ? 0x80 : 0;
    if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7f);
    const double magnitude = std::abs(static_cast<double>(value));
    int low = 0;  // largest that is not above; magnitudes are ordered like their bits
    int above = largest + 1;
    while (above - low > 1) {
      const int middle = (low + above) / 2;
      (ValueOf(middle) <= magnitude ? low : above) = middle;
    }
    // ValueOf goes on where numbers end: what is next to the largest is what would be.
    const double to_low = magnitude - ValueOf(low);
    const double to_high = ValueOf(low + 1) - magnitude;
    const bool up = to_high < to_low || (to_high == to_low && low % 2 == 1);
    const int rounded = up ? low + 1 : low;
    return static_cast<uint8_t>(sign | (rounded > largest && !has_infinity ? largest : rounded));
  }
};

constexpr Definition kE4m3fn = {"float8_e4m3fn",      4, 3, 0x7e, false, Float8E4m3fnToFloat32,
                                Float32ToFloat8E4m3fn};
constexpr Definition kE5m2 = {"float8_e5m2",      5, 2, 0x7b, true, Float8E5m2ToFloat32,
                              Float32ToFloat8E5m2};

class Float8Test : public testing::TestWithParam<Definition> {};

TEST_P(Float8Test, WidensAll256ValuesExactly) {
  const Definition& format = GetParam();
  for (int i = 0; i < 256; ++i) {
    const int magnitude = i & 0x7f;
    const float widened = format.widen(static_cast<uint8_t>(i));
    EXPECT_EQ(std::signbit(widened), i >= 0x80) << i;
    if (magnitude <= format.largest) {
      const double expected = format.ValueOf(magnitude) * (i >= 0x80 ? -1 : 1);
      EXPECT_EQ(widened, expected) << i;
    } else if (format.has_infinity && magnitude == format.largest + 1) {
      EXPECT_TRUE(std::isinf(widened)) << i;
    } else {
      EXPECT_TRUE(std::isnan(widened)) << i;
    }
  }
}

TEST_P(Float8Test, NarrowsWhatItWidened) {
  const Definition& format = GetParam();
  for (int i = 0; i < 256; ++i) {
    const float widened = format.widen(static_cast<uint8_t>(i));
    const int expected = std::isnan(widened) ? (i & 0x80) | 0x7f : i;
    EXPECT_EQ(format.narrow(widened), expected) << i;
  }
}

TEST_P(Float8Test, RoundsToNearestEvenBetweenAllNeighbours) {
  const Definition& format = GetParam();
  for (int i = 0; i <= format.largest; ++i) {
    const auto low = static_cast<float>(format.ValueOf(i));
    const auto high = static_cast<float>(format.ValueOf(i + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(format.narrow(middle), format.Nearest(middle)) << middle;
    // The tie goes to the even one, which is the only one that ends so.
    if (i < format.largest) {
      EXPECT_EQ(format.narrow(middle), i % 2 == 0 ? i : i + 1) << middle;
    }
    for (float value : {low, std::nextafter(low, high), std::nextafter(middle, low),
                        std::nextafter(middle, high), std::nextafter(high, low), high}) {
      EXPECT_EQ(format.narrow(value), format.Nearest(value)) << value;
      EXPECT_EQ(format.narrow(-value), format.Nearest(-value)) << -value;
    }
  }
}

// Every sign, exponent and upper fraction of a float32, with what decides ties below.
TEST_P(Float8Test, RoundsFloatsOfEverySizeAsTheReference) {
  const Definition& format = GetParam();
  int wrong = 0;
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0xffffu}) {
      const auto value = std::bit_cast<float>((upper << 16) | lower);
      if (format.narrow(value) != format.Nearest(value) && ++wrong < 10)
        ADD_FAILURE() << value << " became " << int{format.narrow(value)} << ", expected "
                      << int{format.Nearest(value)};
    }
  }
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Formats, Float8Test, testing::Values(kE4m3fn, kE5m2),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Float8E4m3fn, SaturatesAndHasNoInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Float8E4m3fnToFloat32(0x7e), 448.0f);
  for (float value :
       {448.0f, 464.0f, 465.0f, 480.0f, 1e9f, std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(Float32ToFloat8E4m3fn(value), 0x7e) << value;
    EXPECT_EQ(Float32ToFloat8E4m3fn(-value), 0xfe) << -value;
  }
}

TEST(Float8E5m2, OverflowsToInfinity) {
  EXPECT_EQ(Float8E5m2ToFloat32(0x7b), 57344.0f);
  EXPECT_EQ(Float32ToFloat8E5m2(std::nextafter(61440.0f, 0.0f)), 0x7b);
  EXPECT_EQ(Float32ToFloat8E5m2(61440.0f), 0x7c);  // a tie: even
  EXPECT_EQ(Float32ToFloat8E5m2(-1e9f), 0xfc);
}

TEST(Float8, UnderflowsToZero) {
  EXPECT_EQ(Float32ToFloat8E4m3fn(0x1p-10f), 0);  // a tie with the smallest subnormal: even
  EXPECT_EQ(Float32ToFloat8E4m3fn(std::nextafter(0x1p-10f, 1.0f)), 1);
  EXPECT_EQ(Float32ToFloat8E5m2(0x1p-17f), 0);
  EXPECT_EQ(Float32ToFloat8E5m2(std::nextafter(0x1p-17f, 1.0f)), 1);
  EXPECT_EQ(Float32ToFloat8E4m3fn(-0.0f), 0x80);
  EXPECT_EQ(Float32ToFloat8E5m2(-0.0f), 0x80);
}

}  // namespace
}  // namespace coordd
