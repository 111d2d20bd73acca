// The two 8-bit floating-point formats of machine learning as bits, converted to and from float32
// in plain integer arithmetic: the same bits on every machine, and loops over them vectorise. PURE.
// Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433; OCP OFP8 specification.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace coordd {

// 1 sign, 4 exponent, 3 fraction bits, bias 7. There is no infinity, and one NaN for each sign
// (0x7f, 0xff); the largest number is 448. What is beyond that, an infinity too, becomes 448 with
// its sign, as in CUDA's conversions and so in NCCL's reductions. (torch's own conversion makes a
// NaN of it.)
struct Float8E4m3fnFormat {
  static constexpr uint32_t kFractionBits = 3, kBias = 7;
  static constexpr uint32_t kSpecial = 0x7f;   // from here on a magnitude is no number
  static constexpr uint32_t kOverflow = 0x7e;  // what a larger magnitude becomes
};

// 1 sign, 5 exponent, 2 fraction bits, bias 15: the upper half of an IEEE binary16, infinities
// included. The largest number is 57344; from 61440 on, the middle between that and what would be
// next, it is infinity, as for float16: gradients travel in this format, and what grows beyond it
// has to be seen. (NCCL's reductions end at 57344.)
struct Float8E5m2Format {
  static constexpr uint32_t kFractionBits = 2, kBias = 15;
  static constexpr uint32_t kSpecial = 0x7c;
  static constexpr uint32_t kOverflow = 0x7c;
};

// The conversion is exact, subnormals included; a NaN keeps its sign and fraction.
template <typename Format>
inline float Float8ToFloat32(uint8_t value) {
  constexpr uint32_t kShift = 23 - Format::kFractionBits;
  constexpr uint32_t kSmallestNormal = (128 - Format::kBias) << 23;
  const uint32_t sign = (value & 0x80u) << 24;
  const uint32_t magnitude = value & 0x7fu;
  const uint32_t normal = (magnitude << kShift) + ((127 - Format::kBias) << 23);
  // A subnormal lacks the implicit one: give it that, and take it away again.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(normal + (1u << 23)) -
                                                     std::bit_cast<float>(kSmallestNormal));
  const uint32_t special = 0x7f800000u | ((magnitude << kShift) & 0x7fffffu);
  const uint32_t finite = (magnitude >> Format::kFractionBits) == 0 ? subnormal : normal;
  return std::bit_cast<float>(sign | (magnitude >= Format::kSpecial ? special : finite));
}

// Rounds to nearest, ties to even, subnormals included; what is too large: see the formats. Every
// NaN becomes 0x7f with its sign.
template <typename Format>
inline uint8_t Float32ToFloat8(float value) {
  constexpr uint32_t kShift = 23 - Format::kFractionBits;
  constexpr uint32_t kSmallestNormal = (128 - Format::kBias) << 23;
  // Here the last place of a float32 is that of a subnormal: the addition rounds.
  constexpr uint32_t kRounder = (151 - Format::kBias - Format::kFractionBits) << 23;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kRounder)) -
      kRounder;
  // Rebias, then add just under half of a last place, or half when the kept part is odd.
  const uint32_t normal = (magnitude - ((127 - Format::kBias) << 23) + (1u << (kShift - 1)) - 1 +
                           ((magnitude >> kShift) & 1u)) >>
                          kShift;
  const uint32_t number =
      std::min(magnitude < kSmallestNormal ? subnormal : normal, Format::kOverflow);
  return static_cast<uint8_t>(sign | (magnitude > 0x7f800000u ? 0x7fu : number));
}

inline float Float8E4m3fnToFloat32(uint8_t value) {
  return Float8ToFloat32<Float8E4m3fnFormat>(value);
}
inline uint8_t Float32ToFloat8E4m3fn(float value) {
  return Float32ToFloat8<Float8E4m3fnFormat>(value);
}
inline float Float8E5m2ToFloat32(uint8_t value) { return Float8ToFloat32<Float8E5m2Format>(value); }
inline uint8_t Float32ToFloat8E5m2(float value) { return Float32ToFloat8<Float8E5m2Format>(value); }

}  // namespace coordd
