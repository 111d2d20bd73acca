#include "worker/numeric/reduce_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/worker/support/reference.h"
#include "worker/numeric/float8.h"
#include "worker/numeric/half.h"

namespace coordd {
namespace {

template <typename T>
T ReduceOne(DataType dtype, ReduceOp op, T a, T b) {
  T result;
  Reduce(dtype, op, reinterpret_cast<std::byte*>(&result), reinterpret_cast<const std::byte*>(&a),
         reinterpret_cast<const std::byte*>(&b), 1);
  return result;
}

template <typename T>
T ScaleOne(DataType dtype, double factor, T value) {
  Scale(dtype, factor, reinterpret_cast<std::byte*>(&value), 1);
  return value;
}

TEST(Reduce, MatchesTheReferenceForEveryDtypeAndOpAtEveryAlignment) {
  constexpr int64_t kCount = 259;  // vectors and a remainder
  for (DataType dtype : kAllDataTypes) {
    const std::vector<Bytes> inputs = {TestInput(dtype, 0, kCount, 1),
                                       TestInput(dtype, 1, kCount, 1)};
    for (ReduceOp op : kAllReduceOps) {
      for (size_t shift : {0, 1, 3}) {
        Bytes a(inputs[0].size() + shift);
        Bytes b(inputs[1].size() + shift);
        Bytes result(a.size());
        std::memcpy(a.data() + shift, inputs[0].data(), inputs[0].size());
        std::memcpy(b.data() + shift, inputs[1].data(), inputs[1].size());
        Reduce(dtype, op, result.data() + shift, a.data() + shift, b.data() + shift, kCount);
        EXPECT_EQ(CheckReduced(dtype, op, inputs, result.data() + shift, kCount), "");
        // In place of either operand.
        Bytes left = a;
        Reduce(dtype, op, left.data() + shift, b.data() + shift, kCount);
        EXPECT_EQ(std::memcmp(left.data() + shift, result.data() + shift, inputs[0].size()), 0);
        Reduce(dtype, op, b.data() + shift, a.data() + shift, b.data() + shift, kCount);
        EXPECT_EQ(std::memcmp(b.data() + shift, result.data() + shift, inputs[0].size()), 0);
      }
    }
  }
}

TEST(ReduceTwice, StoresWhatReduceStoresInBothPlacesAlsoInPlaceOfTheOperands) {
  constexpr int64_t kCount = 259;
  for (DataType dtype : kAllDataTypes) {
    const Bytes left = TestInput(dtype, 0, kCount, 1);
    const Bytes right = TestInput(dtype, 1, kCount, 1);
    for (ReduceOp op : kAllReduceOps) {
      Bytes expected(left.size());
      Reduce(dtype, op, expected.data(), left.data(), right.data(), kCount);
      for (size_t shift : {0, 1, 3}) {
        Bytes a(left.size() + shift);
        Bytes b(a.size());
        std::memcpy(a.data() + shift, left.data(), left.size());
        std::memcpy(b.data() + shift, right.data(), right.size());
        Bytes first(a.size());
        Bytes second(a.size());
        const auto all_are_expected = [&](const Bytes& one, const Bytes& other) {
          return std::memcmp(one.data() + shift, expected.data(), expected.size()) == 0 &&
                 std::memcmp(other.data() + shift, expected.data(), expected.size()) == 0;
        };
        ReduceTwice(dtype, op, first.data() + shift, second.data() + shift, a.data() + shift,
                    b.data() + shift, kCount);
        EXPECT_TRUE(all_are_expected(first, second)) << Name(dtype) << " " << Name(op);
        ReduceTwice(dtype, op, b.data() + shift, a.data() + shift, a.data() + shift,
                    b.data() + shift, kCount);
        EXPECT_TRUE(all_are_expected(a, b)) << Name(dtype) << " " << Name(op);
      }
    }
  }
}

TEST(ReduceAll, MatchesTheReferenceForAnyNumberOfSourcesInPlaceOfAnyOfThem) {
  constexpr int64_t kCount = 1100;  // tiles and a remainder
  for (DataType dtype : kAllDataTypes) {
    std::vector<Bytes> inputs;
    std::vector<const std::byte*> sources;
    for (int32_t number = 1; number <= 5; ++number) {
      inputs.push_back(TestInput(dtype, number, kCount, 2));
      for (ReduceOp op : kAllReduceOps) {
        sources.clear();
        for (const Bytes& input : inputs) sources.push_back(input.data());
        Bytes result(inputs[0].size());
        ReduceAll(dtype, op, result.data(), sources, kCount);
        if (number > 1) {
          EXPECT_EQ(CheckReduced(dtype, op, inputs, result.data(), kCount), "");
        }
        for (size_t place = 0; place < inputs.size(); ++place) {
          Bytes in_place = inputs[place];
          sources[place] = in_place.data();
          ReduceAll(dtype, op, in_place.data(), sources, kCount);
          sources[place] = inputs[place].data();
          EXPECT_TRUE(SameBytes(in_place, result)) << Name(dtype) << " " << Name(op);
        }
      }
    }
  }
}

TEST(ReduceAll, HalfPrecisionIsRoundedOnce) {
  // Each of these alone is lost beside 2048, whose neighbour is 2050; together they are 2.
  const std::vector<float> values = {2048.0f, 0.5f, 0.5f, 0.5f, 0.5f};
  std::vector<uint16_t> halves;
  std::vector<const std::byte*> sources;
  for (float value : values) halves.push_back(Float32ToFloat16(value));
  for (const uint16_t& half : halves) sources.push_back(reinterpret_cast<const std::byte*>(&half));
  uint16_t sum = 0;
  ReduceAll(DataType::kFloat16, ReduceOp::kSum, reinterpret_cast<std::byte*>(&sum), sources, 1);
  EXPECT_EQ(Float16ToFloat32(sum), 2050.0f);
}

TEST(Reduce, NoElementsTouchNoMemory) {
  for (DataType dtype : kAllDataTypes) {
    std::byte untouched{42};
    Reduce(dtype, ReduceOp::kSum, &untouched, nullptr, nullptr, 0);
    EXPECT_EQ(untouched, std::byte{42}) << Name(dtype);
  }
}

TEST(Reduce, IntegersWrapAround) {
  EXPECT_EQ(ReduceOne<uint8_t>(DataType::kUint8, ReduceOp::kSum, 200, 100), 44);
  EXPECT_EQ(ReduceOne<int8_t>(DataType::kInt8, ReduceOp::kSum, 127, 1), -128);
  EXPECT_EQ(ReduceOne<uint16_t>(DataType::kUint16, ReduceOp::kProduct, 65535, 65535), 1);
  EXPECT_EQ(ReduceOne<int32_t>(DataType::kInt32, ReduceOp::kSum, 2147483647, 1), -2147483648);
  EXPECT_EQ(ReduceOne<int64_t>(DataType::kInt64, ReduceOp::kProduct, int64_t{1} << 62, 4), 0);
}

TEST(Reduce, MinAndMaxRespectTheSign) {
  EXPECT_EQ(ReduceOne<int8_t>(DataType::kInt8, ReduceOp::kMin, -1, 1), -1);
  EXPECT_EQ(ReduceOne<uint8_t>(DataType::kUint8, ReduceOp::kMin, 255, 1), 1);
  EXPECT_EQ(ReduceOne<uint64_t>(DataType::kUint64, ReduceOp::kMax, ~uint64_t{0}, 1), ~uint64_t{0});
}

TEST(Reduce, AnyByteButZeroIsTrueAndResultsAreZeroOrOne) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    EXPECT_EQ(ReduceOne<uint8_t>(DataType::kBool, op, 2, 4), 1);
    EXPECT_EQ(ReduceOne<uint8_t>(DataType::kBool, op, 0, 128), 1);
    EXPECT_EQ(ReduceOne<uint8_t>(DataType::kBool, op, 0, 0), 0);
  }
  for (ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin}) {
    EXPECT_EQ(ReduceOne<uint8_t>(DataType::kBool, op, 2, 4), 1);
    EXPECT_EQ(ReduceOne<uint8_t>(DataType::kBool, op, 0, 128), 0);
  }
}

// The values at which floating-point operators could depend on the order of their operands.
template <typename T>
std::vector<T> SpecialValues() {
  using Limits = std::numeric_limits<T>;
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const T payload_nan = std::bit_cast<T>(std::bit_cast<Bits>(Limits::quiet_NaN()) | Bits{42});
  return {T{0},
          -T{0},
          T{1},
          -T{1},
          Limits::max(),
          Limits::min(),
          Limits::denorm_min(),
          Limits::infinity(),
          -Limits::infinity(),
          Limits::quiet_NaN(),
          -Limits::quiet_NaN(),
          payload_nan};
}

template <typename T>
void CheckSpecialValues(DataType dtype) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const Bits canonical_nan = std::bit_cast<Bits>(std::numeric_limits<T>::quiet_NaN());
  for (T a : SpecialValues<T>()) {
    for (T b : SpecialValues<T>()) {
      for (ReduceOp op : kAllReduceOps) {
        const Bits ab = std::bit_cast<Bits>(ReduceOne(dtype, op, a, b));
        const Bits ba = std::bit_cast<Bits>(ReduceOne(dtype, op, b, a));
        EXPECT_EQ(ab, ba) << Name(op) << " of " << a << " and " << b;
        const bool nan = std::isnan(std::bit_cast<T>(ab));
        EXPECT_TRUE(nan || !(std::isnan(a) || std::isnan(b))) << Name(op) << a << " " << b;
        EXPECT_TRUE(!nan || ab == canonical_nan);
      }
    }
  }
}

TEST(Reduce, FloatingPointOpsCommuteToTheBitAndPropagateNan) {
  CheckSpecialValues<float>(DataType::kFloat32);
  CheckSpecialValues<double>(DataType::kFloat64);
}

TEST(Reduce, MinusZeroIsLessThanZero) {
  EXPECT_TRUE(std::signbit(ReduceOne(DataType::kFloat32, ReduceOp::kMin, 0.0f, -0.0f)));
  EXPECT_FALSE(std::signbit(ReduceOne(DataType::kFloat32, ReduceOp::kMax, 0.0f, -0.0f)));
  EXPECT_EQ(ReduceOne<uint16_t>(DataType::kFloat16, ReduceOp::kMin, 0x0000, 0x8000), 0x8000);
  EXPECT_EQ(ReduceOne<uint16_t>(DataType::kBfloat16, ReduceOp::kMax, 0x8000, 0x0000), 0x0000);
}

TEST(Reduce, HalvesAddInFloat32AndRoundOnce) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint16_t a = static_cast<uint16_t>(i);
    const uint16_t b = static_cast<uint16_t>(i * 40503u);
    const float sum = Float16ToFloat32(a) + Float16ToFloat32(b);
    const uint16_t expected = std::isnan(sum) ? 0x7e00 : Float32ToFloat16(sum);
    EXPECT_EQ(ReduceOne(DataType::kFloat16, ReduceOp::kSum, a, b), expected) << a << " + " << b;
    const float wide_sum = Bfloat16ToFloat32(a) + Bfloat16ToFloat32(b);
    const uint16_t wide = std::isnan(wide_sum) ? 0x7fc0 : Float32ToBfloat16(wide_sum);
    EXPECT_EQ(ReduceOne(DataType::kBfloat16, ReduceOp::kSum, a, b), wide) << a << " + " << b;
  }
}

// Every pair of values, against the sum in float64, which holds it exactly.
TEST(Reduce, Float8AddsInFloat32AndRoundsOnce) {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const auto x = static_cast<uint8_t>(a), y = static_cast<uint8_t>(b);
      const double narrow = double{Float8E4m3fnToFloat32(x)} + Float8E4m3fnToFloat32(y);
      EXPECT_EQ(ReduceOne(DataType::kFloat8E4m3fn, ReduceOp::kSum, x, y),
                std::isnan(narrow) ? 0x7f : Float32ToFloat8E4m3fn(static_cast<float>(narrow)))
          << a << " + " << b;
      const double wide = double{Float8E5m2ToFloat32(x)} + Float8E5m2ToFloat32(y);
      EXPECT_EQ(ReduceOne(DataType::kFloat8E5m2, ReduceOp::kSum, x, y),
                std::isnan(wide) ? 0x7f : Float32ToFloat8E5m2(static_cast<float>(wide)))
          << a << " + " << b;
    }
  }
}

TEST(Reduce, Float8CommutesAndPropagatesNan) {
  for (DataType dtype : {DataType::kFloat8E4m3fn, DataType::kFloat8E5m2}) {
    for (ReduceOp op : kAllReduceOps) {
      for (int a = 0; a < 256; ++a) {
        for (int b = 0; b < 256; ++b) {
          const auto x = static_cast<uint8_t>(a), y = static_cast<uint8_t>(b);
          const uint8_t result = ReduceOne(dtype, op, x, y);
          EXPECT_EQ(result, ReduceOne(dtype, op, y, x)) << Name(op) << " " << a << " " << b;
          const bool nan = (a & 0x7f) == 0x7f || (b & 0x7f) == 0x7f;
          EXPECT_TRUE(!nan || result == 0x7f) << Name(op) << " " << a << " " << b;
        }
      }
    }
  }
}

// As NCCL's sums do; an infinity of float8_e5m2 says what has happened.
TEST(Reduce, Float8E4m3fnEndsAtItsLargestAndFloat8E5m2AtInfinity) {
  EXPECT_EQ(ReduceOne<uint8_t>(DataType::kFloat8E4m3fn, ReduceOp::kSum, 0x7e, 0x7e), 0x7e);
  EXPECT_EQ(ReduceOne<uint8_t>(DataType::kFloat8E4m3fn, ReduceOp::kProduct, 0x7e, 0xfe), 0xfe);
  EXPECT_EQ(ReduceOne<uint8_t>(DataType::kFloat8E5m2, ReduceOp::kSum, 0x7b, 0x7b), 0x7c);
  EXPECT_EQ(ReduceOne<uint8_t>(DataType::kFloat8E5m2, ReduceOp::kSum, 0x7c, 0x3c), 0x7c);
  EXPECT_EQ(ReduceOne<uint8_t>(DataType::kFloat8E5m2, ReduceOp::kSum, 0x7c, 0xfc), 0x7f);
}

TEST(ReduceAll, Float8IsRoundedOnce) {
  // Each of these alone is lost beside 256, whose neighbour is 288; together they are 32.
  const std::vector<uint8_t> values = {0x78, 0x50, 0x50, 0x50, 0x50};
  std::vector<const std::byte*> sources;
  for (const uint8_t& value : values) sources.push_back(reinterpret_cast<const std::byte*>(&value));
  uint8_t sum = 0;
  ReduceAll(DataType::kFloat8E4m3fn, ReduceOp::kSum, reinterpret_cast<std::byte*>(&sum), sources,
            1);
  EXPECT_EQ(Float8E4m3fnToFloat32(sum), 288.0f);
}

TEST(Scale, AFactorOfOneCopiesEveryBit) {
  for (DataType dtype : kAllDataTypes) {
    const Bytes input = TestInput(dtype, 3, 100, 9);
    Bytes output(input.size());
    CopyScaled(dtype, 1.0, output.data(), input.data(), 100);
    EXPECT_EQ(output, input) << Name(dtype);
  }
}

TEST(Scale, IntegersTruncateTowardZero) {
  EXPECT_EQ(ScaleOne<int32_t>(DataType::kInt32, 0.5, 7), 3);
  EXPECT_EQ(ScaleOne<int32_t>(DataType::kInt32, 0.5, -7), -3);
  EXPECT_EQ(ScaleOne<int8_t>(DataType::kInt8, 1.0 / 3, 100), 33);
}

TEST(Scale, IntegersSaturate) {
  EXPECT_EQ(ScaleOne<uint8_t>(DataType::kUint8, 2.0, 200), 255);
  EXPECT_EQ(ScaleOne<uint8_t>(DataType::kUint8, -1.0, 200), 0);
  EXPECT_EQ(ScaleOne<int8_t>(DataType::kInt8, 2.0, -100), -128);
  EXPECT_EQ(ScaleOne<int64_t>(DataType::kInt64, 1e30, 5), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ScaleOne<int64_t>(DataType::kInt64, 1e30, -5), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(ScaleOne<uint64_t>(DataType::kUint64, 1e30, 5), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(ScaleOne<int32_t>(DataType::kInt32, std::nan(""), 5), 0);
}

TEST(Scale, FloatsMultiply) {
  EXPECT_EQ(ScaleOne(DataType::kFloat32, 0.25, 6.0f), 1.5f);
  EXPECT_EQ(ScaleOne(DataType::kFloat64, 1.0 / 3, 9.0), 9.0 * (1.0 / 3));
  EXPECT_EQ(ScaleOne<uint8_t>(DataType::kFloat8E4m3fn, 0.5, 0x7e), 0x76);
  EXPECT_EQ(ScaleOne<uint8_t>(DataType::kFloat8E5m2, 0.5, 0x7b), 0x77);
  EXPECT_EQ(ScaleOne(DataType::kFloat16, 0.5, Float32ToFloat16(3.0f)), Float32ToFloat16(1.5f));
  EXPECT_EQ(ScaleOne(DataType::kBfloat16, 0.5, Float32ToBfloat16(3.0f)), Float32ToBfloat16(1.5f));
}

TEST(Scale, BoolIsTheTruthOfTheProduct) {
  EXPECT_EQ(ScaleOne<uint8_t>(DataType::kBool, 0.25, 7), 1);
  EXPECT_EQ(ScaleOne<uint8_t>(DataType::kBool, 0.0, 1), 0);
  EXPECT_EQ(ScaleOne<uint8_t>(DataType::kBool, 0.25, 0), 0);
}

TEST(FillIdentity, ChangesNoOperandOfAnyDtypeAndOp) {
  constexpr int64_t kCount = 100;
  for (DataType dtype : kAllDataTypes) {
    const bool floating =
        (dtype >= DataType::kFloat16 && dtype <= DataType::kFloat64) || IsFloat8(dtype);
    for (ReduceOp op : kAllReduceOps) {
      Bytes values = TestInput(dtype, 0, kCount, 3);
      const auto element_bytes = static_cast<size_t>(SizeOf(dtype));
      // Zeros of both signs; infinity is less than nothing.
      std::fill_n(values.begin(), 2 * element_bytes, std::byte{0});
      if (floating) values[2 * element_bytes - 1] = std::byte{0x80};
      // What is true is one.
      if (dtype == DataType::kBool)
        Reduce(dtype, ReduceOp::kMax, values.data(), values.data(), kCount);
      Bytes identity(values.size());
      FillIdentity(dtype, op, identity.data(), kCount);
      Bytes result(values.size());
      Reduce(dtype, op, result.data(), identity.data(), values.data(), kCount);
      EXPECT_TRUE(result == values) << Name(dtype) << " " << Name(op);
      Reduce(dtype, op, result.data(), values.data(), identity.data(), kCount);
      EXPECT_TRUE(result == values) << Name(dtype) << " " << Name(op);
    }
  }
}

}  // namespace
}  // namespace coordd
