// The two 16-bit floating-point formats as bits, converted to and from float32 in plain integer
// arithmetic: the same bits on every machine, and loops over them vectorise. PURE.
#pragma once

#include <bit>
#include <cstdint>

namespace coordd {

// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits. Exact, subnormals included; a NaN keeps
// its sign and fraction.
inline float Float16ToFloat32(uint16_t half) {
  constexpr uint32_t kExponentMask = 0x7c00u << 13;
  constexpr uint32_t kRebias = (127u - 15u) << 23;
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = (half & 0x7fffu) << 13;
  const uint32_t exponent = magnitude & kExponentMask;
  const uint32_t normal = magnitude + kRebias;
  const uint32_t special = normal + kRebias;  // infinity and NaN: exponent 31 becomes 255
  // A subnormal is fraction * 2^-24: give it an implicit one, 2^-14, and take that away again.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(normal + (1u << 23)) - 0x1p-14f);
  const uint32_t finite = exponent == 0 ? subnormal : normal;
  return std::bit_cast<float>(sign | (exponent == kExponentMask ? special : finite));
}

// Rounds to nearest, ties to even; beyond 65504 + 16 it is infinity, below 2^-25 zero. Every NaN
// becomes the one quiet NaN (0x7e00 with the sign).
inline uint16_t Float32ToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // At 0.5 the last place of a float32 is 2^-24, that of a binary16 subnormal: the addition rounds.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  // Rebias, then add just under half of a last place, or half when the kept part is odd.
  const uint32_t normal =
      (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;                // 2^-14
  return static_cast<uint16_t>(sign | (magnitude >= 0x47800000u ? special : finite));  // 2^16
}

// Converts bfloat16, which is the upper half of a float32. The conversion is exact.
inline float Bfloat16ToFloat32(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

// Rounds to nearest, ties to even. Every NaN becomes the one quiet NaN (0x7fc0 with the sign).
inline uint16_t Float32ToBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = ((bits >> 16) & 0x8000u) | 0x7fc0u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

}  // namespace coordd
