// The reference of the self-test: collectives in float64, one element at a time.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "worker/fusion_layout.h"
#include "worker/integer_average.h"
#include "worker/selftest_cases.h"
#include "worker/tensor_values.h"

namespace coordd {
namespace {

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): any two inputs differ in all bits of the output.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

bool IsSigned(DataType dtype) {
  return dtype == DataType::kInt8 || dtype == DataType::kInt16 || dtype == DataType::kInt32 ||
         dtype == DataType::kInt64;
}

// Integer sums and products wrap around; values here are small enough for int64.
double Wrapped(DataType dtype, double value) {
  if (!IsInteger(dtype) || SizeOf(dtype) == 8) return value;
  const double range = std::ldexp(1.0, static_cast<int>(8 * SizeOf(dtype)));
  double wrapped = std::fmod(value, range);
  if (wrapped < 0) wrapped += range;
  if (IsSigned(dtype) && wrapped >= range / 2) wrapped -= range;
  return wrapped;
}

double Scaled(DataType dtype, double value, double factor) {
  const double scaled = value * factor;
  return IsInteger(dtype) ? std::trunc(scaled) : scaled;
}

double Combine(ReduceOp op, DataType dtype, double a, double b) {
  const bool truth = dtype == DataType::kBool;
  switch (op) {
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
    default:
      return truth ? std::max(a, b) : a + b;
  }
}

double Reduced(const SelftestTensor& tensor, int64_t index, int32_t size) {
  const TensorSpec& spec = tensor.spec;
  double value = 0;
  for (int32_t r = 0; r < size; ++r) {
    const double input = Scaled(spec.dtype, InputValue(tensor, r, index), spec.prescale_factor);
    value = r == 0 ? input : Wrapped(spec.dtype, Combine(spec.op, spec.dtype, value, input));
  }
  const double divisor = spec.op == ReduceOp::kAverage ? size : 1;
  const double scaled = value * spec.postscale_factor / divisor;
  return IsInteger(spec.dtype) ? std::trunc(scaled) : scaled;
}

int64_t RowElements(const TensorSpec& spec) {
  return NumElements(absl::MakeSpan(spec.shape).subspan(1));
}

std::vector<int64_t> SplitsOf(const SelftestTensor& tensor, int32_t rank, int32_t size) {
  const size_t r = static_cast<size_t>(rank);
  if (!tensor.splits.empty()) return tensor.splits[r];
  return std::vector<int64_t>(static_cast<size_t>(size), tensor.rows[r] / size);
}

void AppendRange(const SelftestTensor& tensor, int32_t rank, int64_t first, int64_t count,
                 std::vector<double>& out) {
  for (int64_t i = first; i < first + count; ++i) out.push_back(InputValue(tensor, rank, i));
}

}  // namespace

double InputValue(const SelftestTensor& tensor, int32_t rank, int64_t index) {
  const DataType dtype = tensor.spec.dtype;
  const uint64_t bits = Mix(tensor.seed * 1000003 +
                            Mix(static_cast<uint64_t>(index) * 4099 + static_cast<uint64_t>(rank)));
  if (dtype == DataType::kBool) return static_cast<double>(bits & 1);
  if (tensor.spec.op == ReduceOp::kProduct) return bits % 4 == 0 ? 2 : 1;
  if (IsInteger(dtype)) return static_cast<double>(bits % 20) - (IsSigned(dtype) ? 10 : 0);
  return (static_cast<double>(bits % 33) - 16) / 4;
}

std::vector<double> ExpectedResult(const SelftestTensor& tensor, int32_t rank, int32_t size) {
  const TensorSpec& spec = tensor.spec;
  std::vector<double> expected;
  switch (spec.kind) {
    case CollectiveKind::kAllreduce:
      for (int64_t i = 0; i < NumElements(spec.shape); ++i)
        expected.push_back(Reduced(tensor, i, size));
      break;
    case CollectiveKind::kReducescatter: {
      const RowRange range = SplitRows(spec.shape[0], size, rank);
      const int64_t row = RowElements(spec);
      for (int64_t i = range.first * row; i < (range.first + range.rows) * row; ++i)
        expected.push_back(Reduced(tensor, i, size));
      break;
    }
    case CollectiveKind::kBroadcast:
      AppendRange(tensor, spec.root_rank, 0, NumElements(spec.shape), expected);
      break;
    case CollectiveKind::kAllgather:
      for (int32_t r = 0; r < size; ++r)
        AppendRange(tensor, r, 0, tensor.rows[static_cast<size_t>(r)] * RowElements(spec),
                    expected);
      break;
    case CollectiveKind::kAlltoall:
      for (int32_t r = 0; r < size; ++r) {
        const std::vector<int64_t> splits = SplitsOf(tensor, r, size);
        int64_t first = 0;
        for (int32_t d = 0; d < rank; ++d) first += splits[static_cast<size_t>(d)];
        AppendRange(tensor, r, first * RowElements(spec),
                    splits[static_cast<size_t>(rank)] * RowElements(spec), expected);
      }
      break;
    default:
      break;
  }
  return expected;
}

double Tolerance(const SelftestTensor& tensor, int32_t size, double expected) {
  const TensorSpec& spec = tensor.spec;
  if (!Reduces(spec.kind)) return 0;
  // Inputs are at most 4; every partial sum is rounded once.
  const double largest = spec.op == ReduceOp::kProduct
                             ? std::abs(expected)
                             : 4.0 * size * std::abs(spec.prescale_factor * spec.postscale_factor);
  return Epsilon(spec.dtype) * (size + 2) * std::max(largest, std::abs(expected));
}

}  // namespace coordd
