#include "client/tensorflow/elements.h"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "client/c_api/coordd.h"

namespace coordd::tensorflow {
namespace {

constexpr size_t kMaxDimensions = 8;

}  // namespace

std::optional<Elements> ElementsOf(int tf_dtype) {
  switch (tf_dtype) {  // tensorflow/core/framework/types.proto
    case 1:
      return Elements{COORDD_FLOAT32, false};
    case 2:
      return Elements{COORDD_FLOAT64, false};
    case 3:
      return Elements{COORDD_INT32, false};
    case 4:
      return Elements{COORDD_UINT8, false};
    case 5:
      return Elements{COORDD_INT16, false};
    case 6:
      return Elements{COORDD_INT8, false};
    case 8:
      return Elements{COORDD_FLOAT32, true};
    case 9:
      return Elements{COORDD_INT64, false};
    case 10:
      return Elements{COORDD_BOOL, false};
    case 14:
      return Elements{COORDD_BFLOAT16, false};
    case 17:
      return Elements{COORDD_UINT16, false};
    case 18:
      return Elements{COORDD_FLOAT64, true};
    case 19:
      return Elements{COORDD_FLOAT16, false};
    case 22:
      return Elements{COORDD_UINT32, false};
    case 23:
      return Elements{COORDD_UINT64, false};
    case 24:
      return Elements{COORDD_FLOAT8_E5M2, false};
    case 25:
      return Elements{COORDD_FLOAT8_E4M3FN, false};
    default:
      return std::nullopt;
  }
}

std::string CannotTravel(int tf_dtype) {
  const std::string name = tf_dtype == 7 ? "string" : "TF_DataType " + std::to_string(tf_dtype);
  return "a tensor of " + name +
         " cannot travel, expected integers, bool, float16, bfloat16, float32, float64, "
         "float8_e5m2, "
         "float8_e4m3fn, complex64 or complex128";
}

std::vector<int64_t> WireShape(const std::vector<int64_t>& shape, const Elements& elements) {
  std::vector<int64_t> wire = shape;
  if (elements.is_complex) wire.push_back(2);
  while (wire.size() > kMaxDimensions) {
    const int64_t last = wire.back();
    wire.pop_back();
    wire.back() *= last;
  }
  return wire;
}

std::vector<int64_t> ResultShape(const std::vector<int64_t>& shape, int64_t rows) {
  std::vector<int64_t> result = shape;
  if (!result.empty()) result[0] = rows;
  return result;
}

std::string MemberName(const std::string& group, size_t index, size_t count) {
  if (count == 1) return group;
  return group + "_" + std::to_string(index + 1) + "of" + std::to_string(count);
}

}  // namespace coordd::tensorflow
