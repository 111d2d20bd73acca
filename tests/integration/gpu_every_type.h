// Every type of tensor in the collectives of gpu_ranks.cc: each operator, a broadcast, an
// allgather.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "coordd/coordd.h"
#include "tests/integration/gpu_rank.h"
#include "worker/numeric/float8.h"
#include "worker/numeric/half.h"

namespace coordd {

// Small whole numbers, and what averages of one, two and four of them are: every type has them.
struct TypeOnDevice {
  coordd_dtype_t dtype;
  const char* name;
  size_t size;
  void (*write)(double value, std::byte* to);
};

template <typename T>
void WriteAs(double value, std::byte* to) {
  const T made = static_cast<T>(value);  // integers: toward zero, as averages are
  std::memcpy(to, &made, sizeof(made));
}
template <typename T, T (*kConvert)(float)>
void WriteBy(double value, std::byte* to) {
  const T made = kConvert(static_cast<float>(value));
  std::memcpy(to, &made, sizeof(made));
}

inline const std::vector<TypeOnDevice>& EveryTypeOnDevice() {
  static const auto* const types = new std::vector<TypeOnDevice>{
      {COORDD_UINT8, "uint8", 1, WriteAs<uint8_t>},
      {COORDD_INT8, "int8", 1, WriteAs<int8_t>},
      {COORDD_UINT16, "uint16", 2, WriteAs<uint16_t>},
      {COORDD_INT16, "int16", 2, WriteAs<int16_t>},
      {COORDD_UINT32, "uint32", 4, WriteAs<uint32_t>},
      {COORDD_INT32, "int32", 4, WriteAs<int32_t>},
      {COORDD_UINT64, "uint64", 8, WriteAs<uint64_t>},
      {COORDD_INT64, "int64", 8, WriteAs<int64_t>},
      {COORDD_FLOAT16, "float16", 2, WriteBy<uint16_t, Float32ToFloat16>},
      {COORDD_BFLOAT16, "bfloat16", 2, WriteBy<uint16_t, Float32ToBfloat16>},
      {COORDD_FLOAT32, "float32", 4, WriteAs<float>},
      {COORDD_FLOAT64, "float64", 8, WriteAs<double>},
      {COORDD_BOOL, "bool", 1, WriteAs<uint8_t>},
      {COORDD_FLOAT8_E4M3FN, "float8_e4m3fn", 1, WriteBy<uint8_t, Float32ToFloat8E4m3fn>},
      {COORDD_FLOAT8_E5M2, "float8_e5m2", 1, WriteBy<uint8_t, Float32ToFloat8E5m2>}};
  return *types;
}

// What rank `rank` has at place `i`: 1 or 2; of bool, 0 or 1.
inline double OwnElement(const TypeOnDevice& type, int32_t rank, int32_t i) {
  const int32_t one_or_two = 1 + (rank + i) % 2;
  return type.dtype == COORDD_BOOL ? one_or_two - 1 : one_or_two;
}

inline double Reduced(const TypeOnDevice& type, coordd_op_t op, int32_t size, int32_t i) {
  double sum = 0, product = 1, least = 2, most = 0;
  for (int32_t rank = 0; rank < size; ++rank) {
    const double own = OwnElement(type, rank, i);
    sum += own;
    product *= own;
    least = std::min(least, own);
    most = std::max(most, own);
  }
  if (op == COORDD_SUM) return type.dtype == COORDD_BOOL ? most : sum;
  if (op == COORDD_AVERAGE) return sum / size;
  if (op == COORDD_PRODUCT) return product;
  return op == COORDD_MIN ? least : most;
}

template <typename Value>
std::vector<std::byte> Elements(const TypeOnDevice& type, int32_t count, Value value) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * type.size);
  for (int32_t i = 0; i < count; ++i)
    type.write(value(i), bytes.data() + static_cast<size_t>(i) * type.size);
  return bytes;
}

inline void ExpectBytes(RankOnDevice& r, const void* found, const std::vector<std::byte>& expected,
                        const std::string& what) {
  Require(r.Download<std::byte>(found, expected.size()) == expected, what);
}

// All of one type together, so that they are fused and in each other's way.
inline void CollectivesOfType(RankOnDevice& r, const TypeOnDevice& type) {
  constexpr int32_t kCount = 37;
  const int64_t shape[] = {kCount};
  std::vector<coordd_op_t> ops = {COORDD_SUM, COORDD_MIN, COORDD_MAX, COORDD_PRODUCT};
  // The average of three is no number that float8 has.
  if (type.dtype != COORDD_BOOL && (r.size() & (r.size() - 1)) == 0) ops.push_back(COORDD_AVERAGE);
  const auto own = Elements(type, kCount, [&](int32_t i) { return OwnElement(type, r.rank(), i); });
  std::vector<std::byte*> places;
  std::vector<coordd_work_t*> works;
  std::vector<std::string> names;  // which tensors point to
  names.reserve(ops.size() + 2);
  auto place = [&](const std::string& what, bool in_place) {
    names.push_back(std::string(type.name) + " " + what);
    places.push_back(r.Upload(own));
    works.push_back(nullptr);
    return r.Tensor(names.back().c_str(), type.dtype, places.back(),
                    in_place ? places.back() : nullptr, shape);
  };
  for (coordd_op_t op : ops) {
    const coordd_tensor_t tensor = place("allreduce " + std::to_string(op), true);
    RequireOk(coordd_allreduce_async(r.worker(), &tensor, op, nullptr, &works.back()), "submit");
  }
  const coordd_tensor_t sent = place("broadcast", true);
  RequireOk(coordd_broadcast_async(r.worker(), &sent, r.size() - 1, nullptr, &works.back()),
            "submit");
  const coordd_tensor_t rows = place("allgather", false);
  RequireOk(coordd_allgather_async(r.worker(), &rows, nullptr, &works.back()), "submit");
  for (coordd_work_t* work : works) r.Finish(work);
  for (size_t t = 0; t < ops.size(); ++t) {
    ExpectBytes(
        r, places[t],
        Elements(type, kCount, [&](int32_t i) { return Reduced(type, ops[t], r.size(), i); }),
        names[t]);
  }
  ExpectBytes(r, places[ops.size()],
              Elements(type, kCount, [&](int32_t i) { return OwnElement(type, r.size() - 1, i); }),
              names[ops.size()]);
  coordd_result_t result = COORDD_RESULT_INIT;
  RequireOk(coordd_work_result(works.back(), &result), "result");
  ExpectBytes(r, result.output,
              Elements(type, kCount * r.size(),
                       [&](int32_t i) { return OwnElement(type, i / kCount, i % kCount); }),
              names.back());
  for (coordd_work_t* work : works) coordd_work_release(work);
  r.ForgetMemory();
}

}  // namespace coordd
