#include "worker/numeric/integer_average.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/check.h"

namespace coordd {
namespace {

template <typename T>
T Saturated(double value) {
  if (std::isnan(value)) return 0;
  // The bounds as doubles may round outwards; what is at or beyond them is the bound.
  if (value <= static_cast<double>(std::numeric_limits<T>::min()))
    return std::numeric_limits<T>::min();
  if (value >= static_cast<double>(std::numeric_limits<T>::max()))
    return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

template <typename T>
void Average(double factor, int32_t divisor, std::byte* dst, const std::byte* src, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto offset = static_cast<size_t>(i) * sizeof(T);
    T value;
    std::memcpy(&value, src + offset, sizeof(T));
    value = factor == 1.0 ? static_cast<T>(value / static_cast<T>(divisor))
                          : Saturated<T>(static_cast<double>(value) * factor / divisor);
    std::memcpy(dst + offset, &value, sizeof(T));
  }
}

// A divisor that the type cannot hold: no value of the type reaches it.
template <typename T>
void AverageNarrow(double factor, int32_t divisor, std::byte* dst, const std::byte* src,
                   int64_t count) {
  if (divisor <= std::numeric_limits<T>::max()) {
    Average<T>(factor, divisor, dst, src, count);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto offset = static_cast<size_t>(i) * sizeof(T);
    T value;
    std::memcpy(&value, src + offset, sizeof(T));
    value = Saturated<T>(static_cast<double>(value) * factor / divisor);
    std::memcpy(dst + offset, &value, sizeof(T));
  }
}

}  // namespace

bool IsInteger(DataType dtype) { return dtype >= DataType::kUint8 && dtype <= DataType::kInt64; }

void CopyAveraged(DataType dtype, double factor, int32_t divisor, std::byte* dst,
                  const std::byte* src, int64_t count) {
  switch (dtype) {
    case DataType::kUint8:
      return AverageNarrow<uint8_t>(factor, divisor, dst, src, count);
    case DataType::kInt8:
      return AverageNarrow<int8_t>(factor, divisor, dst, src, count);
    case DataType::kUint16:
      return AverageNarrow<uint16_t>(factor, divisor, dst, src, count);
    case DataType::kInt16:
      return AverageNarrow<int16_t>(factor, divisor, dst, src, count);
    case DataType::kUint32:
      return Average<uint32_t>(factor, divisor, dst, src, count);
    case DataType::kInt32:
      return Average<int32_t>(factor, divisor, dst, src, count);
    case DataType::kUint64:
      return Average<uint64_t>(factor, divisor, dst, src, count);
    case DataType::kInt64:
      return Average<int64_t>(factor, divisor, dst, src, count);
    default:
      COORDD_CHECK(false && "an integer type");
  }
}

}  // namespace coordd
