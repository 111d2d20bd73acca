#include "worker/numeric/tensor_values.h"

#include <cstring>

#include "worker/numeric/float8.h"
#include "worker/numeric/half.h"

namespace coordd {
namespace {

template <typename T>
T Load(const std::byte* tensor, int64_t index) {
  T value;
  std::memcpy(&value, tensor + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void StoreElement(T value, std::byte* tensor, int64_t index) {
  std::memcpy(tensor + static_cast<size_t>(index) * sizeof(T), &value, sizeof(T));
}

}  // namespace

double ReadElement(DataType dtype, const std::byte* tensor, int64_t index) {
  switch (dtype) {
    case DataType::kUint8:
      return Load<uint8_t>(tensor, index);
    case DataType::kInt8:
      return Load<int8_t>(tensor, index);
    case DataType::kUint16:
      return Load<uint16_t>(tensor, index);
    case DataType::kInt16:
      return Load<int16_t>(tensor, index);
    case DataType::kUint32:
      return Load<uint32_t>(tensor, index);
    case DataType::kInt32:
      return Load<int32_t>(tensor, index);
    case DataType::kUint64:
      return static_cast<double>(Load<uint64_t>(tensor, index));
    case DataType::kInt64:
      return static_cast<double>(Load<int64_t>(tensor, index));
    case DataType::kFloat16:
      return Float16ToFloat32(Load<uint16_t>(tensor, index));
    case DataType::kBfloat16:
      return Bfloat16ToFloat32(Load<uint16_t>(tensor, index));
    case DataType::kFloat32:
      return Load<float>(tensor, index);
    case DataType::kFloat64:
      return Load<double>(tensor, index);
    case DataType::kBool:
      return Load<uint8_t>(tensor, index) != 0 ? 1 : 0;
    case DataType::kFloat8E4m3fn:
      return Float8E4m3fnToFloat32(Load<uint8_t>(tensor, index));
    case DataType::kFloat8E5m2:
      return Float8E5m2ToFloat32(Load<uint8_t>(tensor, index));
  }
  return 0;
}

void WriteElement(DataType dtype, double value, std::byte* tensor, int64_t index) {
  switch (dtype) {
    case DataType::kUint8:
      return StoreElement(static_cast<uint8_t>(value), tensor, index);
    case DataType::kInt8:
      return StoreElement(static_cast<int8_t>(value), tensor, index);
    case DataType::kUint16:
      return StoreElement(static_cast<uint16_t>(value), tensor, index);
    case DataType::kInt16:
      return StoreElement(static_cast<int16_t>(value), tensor, index);
    case DataType::kUint32:
      return StoreElement(static_cast<uint32_t>(value), tensor, index);
    case DataType::kInt32:
      return StoreElement(static_cast<int32_t>(value), tensor, index);
    case DataType::kUint64:
      return StoreElement(static_cast<uint64_t>(value), tensor, index);
    case DataType::kInt64:
      return StoreElement(static_cast<int64_t>(value), tensor, index);
    case DataType::kFloat16:
      return StoreElement(Float32ToFloat16(static_cast<float>(value)), tensor, index);
    case DataType::kBfloat16:
      return StoreElement(Float32ToBfloat16(static_cast<float>(value)), tensor, index);
    case DataType::kFloat32:
      return StoreElement(static_cast<float>(value), tensor, index);
    case DataType::kFloat64:
      return StoreElement(value, tensor, index);
    case DataType::kBool:
      return StoreElement(static_cast<uint8_t>(value != 0), tensor, index);
    case DataType::kFloat8E4m3fn:
      return StoreElement(Float32ToFloat8E4m3fn(static_cast<float>(value)), tensor, index);
    case DataType::kFloat8E5m2:
      return StoreElement(Float32ToFloat8E5m2(static_cast<float>(value)), tensor, index);
  }
}

double Epsilon(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat8E4m3fn:
      return 0x1p-3;
    case DataType::kFloat8E5m2:
      return 0x1p-2;
    case DataType::kFloat16:
      return 0x1p-10;
    case DataType::kBfloat16:
      return 0x1p-7;
    case DataType::kFloat32:
      return 0x1p-23;
    case DataType::kFloat64:
      return 0x1p-52;
    default:
      return 0;
  }
}

}  // namespace coordd
