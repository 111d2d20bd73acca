#include "worker/host/result_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/numeric/tensor_values.h"

namespace coordd {
namespace {

bool IsFloating(DataType dtype) { return Epsilon(dtype) > 0; }

bool IsSignedInteger(DataType dtype) {
  return dtype == DataType::kInt8 || dtype == DataType::kInt16 || dtype == DataType::kInt32 ||
         dtype == DataType::kInt64;
}

// An integer of any type, extended to 64 bits as its sign says.
uint64_t ReadInteger(DataType dtype, const std::byte* tensor, int64_t index) {
  const auto size = static_cast<size_t>(SizeOf(dtype));
  uint64_t value = 0;  // little-endian, as every machine that this is built for
  std::memcpy(&value, tensor + static_cast<size_t>(index) * size, size);
  if (!IsSignedInteger(dtype) || size == 8) return value;
  const uint64_t sign = uint64_t{1} << (8 * size - 1);
  return (value ^ sign) - sign;
}

uint64_t CombineIntegers(DataType dtype, ReduceOp op, uint64_t a, uint64_t b) {
  const bool a_less =
      IsSignedInteger(dtype) ? static_cast<int64_t>(a) < static_cast<int64_t>(b) : a < b;
  switch (op) {
    case ReduceOp::kMin:
      return a_less ? a : b;
    case ReduceOp::kMax:
      return a_less ? b : a;
    case ReduceOp::kProduct:
      return a * b;
    default:
      return a + b;
  }
}

// Whether the element is right; writes what it has to be.
bool CheckInteger(DataType dtype, ReduceOp op, absl::Span<const std::byte* const> inputs,
                  const std::byte* got, int64_t i, std::byte* expected) {
  const auto size = static_cast<size_t>(SizeOf(dtype));
  const size_t at = static_cast<size_t>(i) * size;
  uint64_t value = ReadInteger(dtype, inputs.front(), i);
  for (const std::byte* input : inputs.subspan(1))
    value = CombineIntegers(dtype, op, value, ReadInteger(dtype, input, i));
  std::memcpy(expected + at, &value, size);
  return std::memcmp(got + at, expected + at, size) == 0;
}

bool CheckTruth(ReduceOp op, absl::Span<const std::byte* const> inputs, const std::byte* got,
                int64_t i, std::byte* expected) {
  const auto is_true = [i](const std::byte* tensor) { return tensor[i] != std::byte{0}; };
  const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax;
  const bool value = any ? std::any_of(inputs.begin(), inputs.end(), is_true)
                         : std::all_of(inputs.begin(), inputs.end(), is_true);
  expected[i] = std::byte{value};
  return is_true(got) == value;
}

double Largest(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat8E4m3fn:
      return 448;
    case DataType::kFloat8E5m2:
      return 57344;
    case DataType::kFloat16:
      return 65504;
    case DataType::kBfloat16:
      return 0x1.fep127;
    case DataType::kFloat32:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

double SmallestNormal(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat8E4m3fn:
      return 0x1p-6;
    case DataType::kFloat8E5m2:
    case DataType::kFloat16:
      return 0x1p-14;
    case DataType::kBfloat16:
    case DataType::kFloat32:
      return std::numeric_limits<float>::min();
    default:
      return std::numeric_limits<double>::min();
  }
}

// What is known about the inputs of one element.
struct Operands {
  double sum = 0, magnitudes = 0;             // of all; of the finite ones
  double product = 1, grown = 1, shrunk = 1;  // of all; of finite ones above 1; of those below
  double least = std::numeric_limits<double>::infinity(), most = -least;
  bool nan = false;

  void Add(double x) {
    const double magnitude = std::abs(x);
    nan = nan || std::isnan(x);
    sum += x;
    product *= x;
    if (std::isfinite(x)) magnitudes += magnitude;
    if (std::isfinite(x) && magnitude > 1) grown *= magnitude;
    if (magnitude < 1 && magnitude > 0) shrunk *= magnitude;
    least = std::min(least, x);
    most = std::max(most, x);
  }
};

struct Verdict {
  double expected = 0;
  double allowed = 0;  // distance; 0: exact
  bool judged = true;
};

Verdict Judge(DataType dtype, ReduceOp op, double tolerance, const Operands& all, double ranks) {
  // Each of the p operands is rounded fewer than p times on its way, by half an epsilon at most.
  const double relative = tolerance + std::expm1(ranks * std::log1p(Epsilon(dtype) / 2));
  // Of what is smaller than normal the last place is as large as that of the smallest normal one.
  const double floor = ranks * Epsilon(dtype) * SmallestNormal(dtype);
  constexpr double kAlmost = 0.99;  // partial results are rounded
  const double nan = std::numeric_limits<double>::quiet_NaN();
  switch (op) {
    case ReduceOp::kMin:
      return {.expected = all.nan ? nan : all.least};
    case ReduceOp::kMax:
      return {.expected = all.nan ? nan : all.most};
    case ReduceOp::kProduct: {
      const bool ordered =
          all.grown > kAlmost * Largest(dtype) || all.shrunk * kAlmost < SmallestNormal(dtype);
      return {all.product, relative * std::abs(all.product) + floor, !ordered};
    }
    default:
      return {all.sum, relative * all.magnitudes + floor,
              all.magnitudes <= kAlmost * Largest(dtype)};
  }
}

// The scaled result, in which the last place of what is scaled counts too.
Verdict Scaled(DataType dtype, double scale, double tolerance, Verdict verdict) {
  if (scale == 1.0) return verdict;
  const double floor = 2 * Epsilon(dtype) * SmallestNormal(dtype);
  verdict.judged = verdict.judged && (std::abs(scale) <= 1 || !std::isfinite(verdict.expected) ||
                                      std::abs(verdict.expected * scale) <= 0.99 * Largest(dtype));
  verdict.expected *= scale;
  verdict.allowed = verdict.allowed * std::abs(scale) + floor +
                    (tolerance + 2 * Epsilon(dtype)) * std::abs(verdict.expected);
  return verdict;
}

bool CheckFloat(DataType dtype, ReduceOp op, double scale, double tolerance,
                absl::Span<const std::byte* const> inputs, const std::byte* got, int64_t i,
                std::byte* expected) {
  Operands all;
  for (const std::byte* input : inputs) all.Add(ReadElement(dtype, input, i));
  const Verdict verdict =
      Scaled(dtype, scale, tolerance,
             Judge(dtype, op, tolerance, all, static_cast<double>(inputs.size())));
  WriteElement(dtype, verdict.expected, expected, i);
  if (!verdict.judged) return true;
  const double found = ReadElement(dtype, got, i);
  if (std::isnan(verdict.expected)) return std::isnan(found);
  if (std::isinf(verdict.expected)) return found == verdict.expected;
  return std::abs(found - verdict.expected) <= verdict.allowed;  // not for a NaN
}

}  // namespace

int64_t FirstWrongReduction(DataType dtype, ReduceOp op, double tolerance,
                            absl::Span<const std::byte* const> inputs, const std::byte* got,
                            int64_t count, std::byte* expected, double scale) {
  int64_t first = -1;
  for (int64_t i = 0; i < count; ++i) {
    bool right = false;
    if (dtype == DataType::kBool) {
      right = CheckTruth(op, inputs, got, i, expected);
    } else if (IsFloating(dtype)) {
      right = CheckFloat(dtype, op, scale, tolerance, inputs, got, i, expected);
    } else {
      right = CheckInteger(dtype, op, inputs, got, i, expected);
    }
    if (!right && first < 0) first = i;
  }
  return first;
}

std::string ElementText(DataType dtype, const std::byte* tensor, int64_t index) {
  if (dtype == DataType::kBool) return ReadElement(dtype, tensor, index) != 0 ? "true" : "false";
  if (!IsFloating(dtype)) {
    const uint64_t value = ReadInteger(dtype, tensor, index);
    return IsSignedInteger(dtype) ? absl::StrCat(static_cast<int64_t>(value)) : absl::StrCat(value);
  }
  const int digits = dtype == DataType::kFloat64 ? 17 : 9;
  return absl::StrFormat("%.*g", digits, ReadElement(dtype, tensor, index));
}

}  // namespace coordd
