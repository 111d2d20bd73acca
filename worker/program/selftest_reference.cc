// The reference of the self-test: collectives in float64, one element at a time.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "worker/execute/fusion_layout.h"
#include "worker/numeric/integer_average.h"
#include "worker/numeric/tensor_values.h"
#include "worker/program/selftest_cases.h"

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

// Who takes part, in the order of the set.
std::vector<int32_t> MembersOf(const SelftestTensor& tensor, int32_t size) {
  if (!tensor.members.empty()) return tensor.members;
  std::vector<int32_t> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

double Reduced(const SelftestTensor& tensor, int64_t index, const std::vector<int32_t>& members) {
  const TensorSpec& spec = tensor.spec;
  const auto first = static_cast<size_t>(tensor.joined);
  double value = 0;
  for (size_t m = first; m < members.size(); ++m) {
    const double input =
        Scaled(spec.dtype, InputValue(tensor, members[m], index), spec.prescale_factor);
    value = m == first ? input : Wrapped(spec.dtype, Combine(spec.op, spec.dtype, value, input));
  }
  const double divisor = spec.op == ReduceOp::kAverage ? static_cast<double>(members.size()) : 1;
  const double scaled = value * spec.postscale_factor / divisor;
  return IsInteger(spec.dtype) ? std::trunc(scaled) : scaled;
}

int64_t RowElements(const TensorSpec& spec) {
  return NumElements(absl::MakeSpan(spec.shape).subspan(1));
}

std::vector<int64_t> SplitsOf(const SelftestTensor& tensor, size_t member, size_t members) {
  if (!tensor.splits.empty()) return tensor.splits[member];
  return std::vector<int64_t>(members, tensor.rows[member] / static_cast<int64_t>(members));
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
  // A float8 has few digits, and ends at 448: what most ranks give is neutral.
  const bool counts = !IsFloat8(dtype) || rank < 8;
  if (tensor.spec.op == ReduceOp::kProduct) return bits % 4 == 0 && counts ? 2 : 1;
  if (IsFloat8(dtype)) return counts ? (static_cast<double>(bits % 9) - 4) / 4 : 0;
  if (IsInteger(dtype)) return static_cast<double>(bits % 20) - (IsSigned(dtype) ? 10 : 0);
  return (static_cast<double>(bits % 33) - 16) / 4;
}

size_t MemberIndex(const SelftestTensor& tensor, int32_t rank) {
  if (tensor.members.empty()) return static_cast<size_t>(rank);
  const auto found = std::find(tensor.members.begin(), tensor.members.end(), rank);
  return static_cast<size_t>(found - tensor.members.begin());
}

bool Submits(const SelftestTensor& tensor, int32_t rank) {
  const size_t index = MemberIndex(tensor, rank);
  return tensor.members.empty() ||
         (index >= static_cast<size_t>(tensor.joined) && index < tensor.members.size());
}

std::vector<double> ExpectedResult(const SelftestTensor& tensor, int32_t rank, int32_t size) {
  const TensorSpec& spec = tensor.spec;
  const std::vector<int32_t> members = MembersOf(tensor, size);
  const auto joined = static_cast<size_t>(tensor.joined);
  const size_t self = MemberIndex(tensor, rank);
  std::vector<double> expected;
  switch (spec.kind) {
    case CollectiveKind::kReduce:
      if (rank != spec.root_rank) break;
      [[fallthrough]];
    case CollectiveKind::kAllreduce:
      for (int64_t i = 0; i < NumElements(spec.shape); ++i)
        expected.push_back(Reduced(tensor, i, members));
      break;
    case CollectiveKind::kReducescatter: {
      const RowRange range = SplitRows(spec.shape[0], static_cast<int32_t>(members.size()),
                                       static_cast<int32_t>(self));
      const int64_t row = RowElements(spec);
      for (int64_t i = range.first * row; i < (range.first + range.rows) * row; ++i)
        expected.push_back(Reduced(tensor, i, members));
      break;
    }
    case CollectiveKind::kBroadcast:
      AppendRange(tensor, spec.root_rank, 0, NumElements(spec.shape), expected);
      break;
    case CollectiveKind::kReceive:
      AppendRange(tensor, spec.peer_rank, 0, NumElements(spec.shape), expected);
      break;
    case CollectiveKind::kGather:
      if (rank != spec.root_rank) break;
      [[fallthrough]];
    case CollectiveKind::kAllgather:
      for (size_t m = joined; m < members.size(); ++m)
        AppendRange(tensor, members[m], 0, tensor.rows[m] * RowElements(spec), expected);
      break;
    case CollectiveKind::kAlltoall:
      for (size_t m = joined; m < members.size(); ++m) {
        const std::vector<int64_t> splits = SplitsOf(tensor, m, members.size());
        const int64_t first = std::accumulate(
            splits.begin(), splits.begin() + static_cast<int64_t>(self), int64_t{0});
        AppendRange(tensor, members[m], first * RowElements(spec), splits[self] * RowElements(spec),
                    expected);
      }
      break;
    case CollectiveKind::kSend:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
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
