// How a tensor of TensorFlow travels: dtypes and shapes. PURE.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace coordd::tensorflow {

// A TF_DataType as elements of the library's. A complex number is two floats.
struct Elements {
  int32_t dtype = 0;  // coordd_dtype_t
  bool is_complex = false;
};

// Nothing: the library has no such elements.
std::optional<Elements> ElementsOf(int tf_dtype);

// "string (TF_DataType 7) cannot travel, expected float32, ...": one sentence.
std::string CannotTravel(int tf_dtype);

// The shape under which the library is given a tensor: that of its elements, with 8 dimensions at
// most, since the last ones of a longer one may be multiplied. The first one is always the same.
std::vector<int64_t> WireShape(const std::vector<int64_t>& shape, const Elements& elements);

// The shape of a gathered or scattered result of `rows` rows, whose input had `shape`.
std::vector<int64_t> ResultShape(const std::vector<int64_t>& shape, int64_t rows);

// "name_2of3": the name of one tensor of a group; of a group of one, the group's.
std::string MemberName(const std::string& group, size_t index, size_t count);

}  // namespace coordd::tensorflow
