#include "tests/worker/support/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "worker/numeric/float8.h"
#include "worker/numeric/half.h"

namespace coordd {
namespace {

// Less is made as quickly as it is found; more would be too much to keep.
constexpr int64_t kMinRemembered = 100;
constexpr int64_t kMaxRemembered = 200000;
// Longer inputs repeat one of so many elements: a prime, which no segment, slice or block divides,
// so that what lands in a wrong place is seen all the same.
constexpr int64_t kPeriod = 199999;

uint32_t Mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

template <typename T>
void Store(Bytes& bytes, int64_t index, T value) {
  std::memcpy(bytes.data() + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

template <typename T>
T Load(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

bool IsFloating(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16 ||
         dtype == DataType::kFloat32 || dtype == DataType::kFloat64 || IsFloat8(dtype);
}

bool IsSigned(DataType dtype) {
  return dtype == DataType::kInt8 || dtype == DataType::kInt16 || dtype == DataType::kInt32 ||
         dtype == DataType::kInt64;
}

// Integers widened to 64 bits, in two's complement.
uint64_t IntegerAt(DataType dtype, const std::byte* data, int64_t index) {
  switch (dtype) {
    case DataType::kUint8:
      return Load<uint8_t>(data, index);
    case DataType::kInt8:
      return static_cast<uint64_t>(int64_t{Load<int8_t>(data, index)});
    case DataType::kUint16:
      return Load<uint16_t>(data, index);
    case DataType::kInt16:
      return static_cast<uint64_t>(int64_t{Load<int16_t>(data, index)});
    case DataType::kUint32:
      return Load<uint32_t>(data, index);
    case DataType::kInt32:
      return static_cast<uint64_t>(int64_t{Load<int32_t>(data, index)});
    case DataType::kBool:
      return Load<uint8_t>(data, index) != 0 ? 1 : 0;
    default:
      return Load<uint64_t>(data, index);
  }
}

uint64_t CombineIntegers(DataType dtype, ReduceOp op, uint64_t a, uint64_t b) {
  if (dtype == DataType::kBool)
    return op == ReduceOp::kSum || op == ReduceOp::kMax ? (a | b) : (a & b);
  const bool less = IsSigned(dtype) ? static_cast<int64_t>(a) < static_cast<int64_t>(b) : a < b;
  switch (op) {
    case ReduceOp::kSum:
      return a + b;
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return less ? a : b;
    default:
      return less ? b : a;
  }
}

double CombineDoubles(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kSum:
      return a + b;
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    default:
      return std::max(a, b);
  }
}

double UnitRoundoff(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat8E4m3fn:
      return 0x1p-4;
    case DataType::kFloat8E5m2:
      return 0x1p-3;
    case DataType::kFloat16:
      return 0x1p-11;
    case DataType::kBfloat16:
      return 0x1p-8;
    case DataType::kFloat32:
      return 0x1p-24;
    default:
      return 0x1p-53;
  }
}

std::string Wrong(DataType dtype, ReduceOp op, int64_t index, double found, double expected) {
  return absl::StrCat(Name(dtype), " ", Name(op), ": element ", index, " is ", found, ", expected ",
                      expected);
}

std::string CheckFloats(DataType dtype, ReduceOp op, const std::vector<Bytes>& inputs,
                        const std::byte* actual, int64_t count) {
  const double ranks = static_cast<double>(inputs.size());
  const bool exact = op == ReduceOp::kMin || op == ReduceOp::kMax;
  const double allowed =
      exact ? 0.0 : std::expm1(ranks * std::log1p(UnitRoundoff(dtype))) + ranks * 0x1p-53;
  for (int64_t i = 0; i < count; ++i) {
    double expected = ElementAt(dtype, inputs[0].data(), i);
    double magnitude = std::abs(expected);
    for (size_t r = 1; r < inputs.size(); ++r) {
      const double value = ElementAt(dtype, inputs[r].data(), i);
      expected = CombineDoubles(op, expected, value);
      magnitude += std::abs(value);
    }
    if (op == ReduceOp::kProduct) magnitude = std::abs(expected);
    const double found = ElementAt(dtype, actual, i);
    if (!(std::abs(found - expected) <= allowed * magnitude))
      return Wrong(dtype, op, i, found, expected);
  }
  return "";
}

std::string CheckIntegers(DataType dtype, ReduceOp op, const std::vector<Bytes>& inputs,
                          const std::byte* actual, int64_t count) {
  const int64_t bits = 8 * SizeOf(dtype);
  const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t expected = IntegerAt(dtype, inputs[0].data(), i);
    for (size_t r = 1; r < inputs.size(); ++r)
      expected = CombineIntegers(dtype, op, expected, IntegerAt(dtype, inputs[r].data(), i));
    const uint64_t found = IntegerAt(dtype, actual, i);
    if ((found & mask) != (expected & mask)) {
      return Wrong(dtype, op, i, static_cast<double>(static_cast<int64_t>(found)),
                   static_cast<double>(static_cast<int64_t>(expected)));
    }
  }
  return "";
}

Bytes MakeInput(DataType dtype, int32_t rank, int64_t count, int32_t salt) {
  const int64_t size = SizeOf(dtype);  // a call that is not inlined, out of the loop
  Bytes bytes(static_cast<size_t>(count * size));
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t random =
        Mix(static_cast<uint32_t>(i) * 31u + static_cast<uint32_t>(rank) * 0x9e3779b9u +
            static_cast<uint32_t>(salt) * 0x85ebca6bu);
    // In [-2, 2] without a neighbourhood of zero, so that products of 8 stay normal in float16; and
    // nearer to 1, in float8.
    const double fraction = static_cast<double>(random % 1000) / 1000.0;
    const double sign = (random >> 20) % 2 == 0 ? 1.0 : -1.0;
    const double real = (fraction * 1.5 + 0.5) * sign;
    const auto nearer_to_one = static_cast<float>((fraction * 0.75 + 0.75) * sign);
    switch (dtype) {
      case DataType::kFloat16:
        Store(bytes, i, Float32ToFloat16(static_cast<float>(real)));
        break;
      case DataType::kBfloat16:
        Store(bytes, i, Float32ToBfloat16(static_cast<float>(real)));
        break;
      case DataType::kFloat8E4m3fn:
        Store(bytes, i, Float32ToFloat8E4m3fn(nearer_to_one));
        break;
      case DataType::kFloat8E5m2:
        Store(bytes, i, Float32ToFloat8E5m2(nearer_to_one));
        break;
      case DataType::kFloat32:
        Store(bytes, i, static_cast<float>(real));
        break;
      case DataType::kFloat64:
        Store(bytes, i, real);
        break;
      case DataType::kBool:
        // Any byte but 0 is true.
        Store(bytes, i, static_cast<uint8_t>(random % 3 == 0 ? 0 : random % 255 + 1));
        break;
      default:
        for (int64_t b = 0; b < size; ++b) {
          const uint32_t part = Mix(random + static_cast<uint32_t>(b));
          bytes[static_cast<size_t>(i * size + b)] = static_cast<std::byte>(part);
        }
    }
  }
  return bytes;
}

Bytes Repeated(const Bytes& period, size_t size) {
  Bytes bytes;
  bytes.reserve(size);
  while (bytes.size() < size) {
    const size_t part = std::min(period.size(), size - bytes.size());
    bytes.insert(bytes.end(), period.begin(), period.begin() + static_cast<ptrdiff_t>(part));
  }
  return bytes;
}

}  // namespace

Bytes TestInput(DataType dtype, int32_t rank, int64_t count, int32_t salt) {
  if (count < kMinRemembered) return MakeInput(dtype, rank, count, salt);
  if (count > kMaxRemembered) {
    return Repeated(TestInput(dtype, rank, kPeriod, salt),
                    static_cast<size_t>(count * SizeOf(dtype)));
  }
  // The suites ask for the same again for every operation and on every rank.
  static Mutex& mu = *new Mutex;
  static auto& remembered =
      *new std::map<std::tuple<DataType, int32_t, int64_t, int32_t>, std::unique_ptr<Bytes>>;
  MutexLock lock(&mu);
  std::unique_ptr<Bytes>& input = remembered[{dtype, rank, count, salt}];
  if (input == nullptr) input = std::make_unique<Bytes>(MakeInput(dtype, rank, count, salt));
  return *input;
}

bool SameBytes(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

std::string CheckReduced(DataType dtype, ReduceOp op, const std::vector<Bytes>& inputs,
                         const std::byte* actual, int64_t count) {
  return IsFloating(dtype) ? CheckFloats(dtype, op, inputs, actual, count)
                           : CheckIntegers(dtype, op, inputs, actual, count);
}

double ElementAt(DataType dtype, const std::byte* data, int64_t index) {
  switch (dtype) {
    case DataType::kFloat8E4m3fn:
      return Float8E4m3fnToFloat32(Load<uint8_t>(data, index));
    case DataType::kFloat8E5m2:
      return Float8E5m2ToFloat32(Load<uint8_t>(data, index));
    case DataType::kFloat16:
      return Float16ToFloat32(Load<uint16_t>(data, index));
    case DataType::kBfloat16:
      return Bfloat16ToFloat32(Load<uint16_t>(data, index));
    case DataType::kFloat32:
      return Load<float>(data, index);
    default:
      return Load<double>(data, index);
  }
}

}  // namespace coordd
