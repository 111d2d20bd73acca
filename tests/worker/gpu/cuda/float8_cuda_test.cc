// worker/numeric/float8.h beside CUDA's own conversions, which are those of NCCL's reductions on a
// device.
#include "worker/numeric/float8.h"

#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace coordd {
namespace {

// Every sign, exponent and upper fraction of a float32, with what decides ties below. A NaN is a
// NaN: CUDA's has no sign.
template <typename Check>
void ForFloatsOfEverySize(Check check) {
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0xffffu}) {
      const auto value = std::bit_cast<float>((upper << 16) | lower);
      if (!std::isnan(value)) check(value);
    }
  }
}

TEST(Float8BesideCuda, E4m3fnIsTheSaturatingConversion) {
  ForFloatsOfEverySize([](float value) {
    ASSERT_EQ(Float32ToFloat8E4m3fn(value), __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3))
        << value;
  });
}

TEST(Float8BesideCuda, E5m2IsTheConversionWithInfinities) {
  ForFloatsOfEverySize([](float value) {
    ASSERT_EQ(Float32ToFloat8E5m2(value), __nv_cvt_float_to_fp8(value, __NV_NOSAT, __NV_E5M2))
        << value;
  });
}

TEST(Float8BesideCuda, WidensAll256ValuesAlike) {
  for (int i = 0; i < 256; ++i) {
    const auto bits = static_cast<uint8_t>(i);
    __nv_fp8_e4m3 e4m3;
    __nv_fp8_e5m2 e5m2;
    e4m3.__x = e5m2.__x = bits;
    for (auto [ours, cudas] : {std::pair(Float8E4m3fnToFloat32(bits), static_cast<float>(e4m3)),
                               std::pair(Float8E5m2ToFloat32(bits), static_cast<float>(e5m2))}) {
      EXPECT_TRUE(ours == cudas || (std::isnan(ours) && std::isnan(cudas))) << i;
    }
  }
}

}  // namespace
}  // namespace coordd
