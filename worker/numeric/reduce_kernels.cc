#include "worker/numeric/reduce_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/base/check.h"
#include "worker/base/copy_bytes.h"
#include "worker/numeric/float8.h"
#include "worker/numeric/half.h"

// One template per idea, instantiated per dtype and operator; the compiler vectorises the loops
// (this file is built with -O3). Loops that combine exist twice: for every processor of the
// architecture, and for those with AVX2, which is chosen when the program runs; the one that stores
// twice exists for AVX-512, too. All compute the same bits: each element's operations are the same,
// and none are contracted (-ffp-contract=off).

namespace coordd {
namespace {

// How an element lies in memory and in which type it is computed.
template <typename T>
struct Plain {
  using Stored = T;
  using Computed = T;
  static T Load(T value) { return value; }
  static T Store(T value) { return value; }
};

struct Float16 {
  using Stored = uint16_t;
  using Computed = float;
  static float Load(uint16_t value) { return Float16ToFloat32(value); }
  static uint16_t Store(float value) { return Float32ToFloat16(value); }
};

struct Bfloat16 {
  using Stored = uint16_t;
  using Computed = float;
  static float Load(uint16_t value) { return Bfloat16ToFloat32(value); }
  static uint16_t Store(float value) { return Float32ToBfloat16(value); }
};

template <typename Format>
struct Float8 {
  using Stored = uint8_t;
  using Computed = float;
  static float Load(uint8_t value) { return Float8ToFloat32<Format>(value); }
  static uint8_t Store(float value) { return Float32ToFloat8<Format>(value); }
};

struct Bool {
  using Stored = uint8_t;
  using Computed = bool;
  static bool Load(uint8_t value) { return value != 0; }
  static uint8_t Store(bool value) { return value ? 1 : 0; }
};

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <typename T>
T CanonicalNan(T value) {
  return value != value ? std::numeric_limits<T>::quiet_NaN() : value;
}

// Wide enough that the product of two uint16 is not computed in (signed) int, and unsigned so that
// overflow wraps.
template <typename T>
using Wrapping = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

struct Sum {
  template <typename T>
  static T Apply(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a | b;
    } else if constexpr (std::is_floating_point_v<T>) {
      return CanonicalNan(a + b);
    } else {
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    }
  }
};

struct Product {
  template <typename T>
  static T Apply(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a & b;
    } else if constexpr (std::is_floating_point_v<T>) {
      return CanonicalNan(a * b);
    } else {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    }
  }
};

// For equal floating-point operands the bits differ in the sign of zero only: or-ing them keeps a
// minus, and-ing a plus.
struct Min {
  template <typename T>
  static T Apply(T a, T b) {
    T result = b < a ? b : a;
    if constexpr (std::is_floating_point_v<T>) {
      using Bits = BitsOf<T>;
      const T zero = std::bit_cast<T>(std::bit_cast<Bits>(a) | std::bit_cast<Bits>(b));
      result = a == b ? zero : result;
      result = CanonicalNan(b != b ? b : result);
    }
    return result;
  }
};

struct Max {
  template <typename T>
  static T Apply(T a, T b) {
    T result = a < b ? b : a;
    if constexpr (std::is_floating_point_v<T>) {
      using Bits = BitsOf<T>;
      const T zero = std::bit_cast<T>(std::bit_cast<Bits>(a) & std::bit_cast<Bits>(b));
      result = a == b ? zero : result;
      result = CanonicalNan(b != b ? b : result);
    }
    return result;
  }
};

// Buffers come from anywhere: memcpy is the load and store that needs no alignment.
template <typename T>
T LoadAt(const std::byte* bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void StoreAt(std::byte* bytes, int64_t index, T value) {
  std::memcpy(bytes + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

template <typename Element, typename Op>
[[gnu::always_inline]] inline void ReduceLoop(std::byte* dst, const std::byte* a,
                                              const std::byte* b, int64_t count) {
  using Stored = typename Element::Stored;
  using Computed = typename Element::Computed;
  for (int64_t i = 0; i < count; ++i) {
    const Computed x = Element::Load(LoadAt<Stored>(a, i));
    const Computed y = Element::Load(LoadAt<Stored>(b, i));
    StoreAt<Stored>(dst, i, Element::Store(Op::template Apply<Computed>(x, y)));
  }
}

// What is read and written at the same place has the same index: no iteration needs another one's.
template <typename Element, typename Op>
[[gnu::always_inline]] inline void ReduceTwiceLoop(std::byte* dst, std::byte* also,
                                                   const std::byte* a, const std::byte* b,
                                                   int64_t count) {
  using Stored = typename Element::Stored;
  using Computed = typename Element::Computed;
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC ivdep
#endif
  for (int64_t i = 0; i < count; ++i) {
    const Computed x = Element::Load(LoadAt<Stored>(a, i));
    const Computed y = Element::Load(LoadAt<Stored>(b, i));
    const Stored made = Element::Store(Op::template Apply<Computed>(x, y));
    StoreAt<Stored>(dst, i, made);
    StoreAt<Stored>(also, i, made);
  }
}

// Calls f.template operator()<Op>() for the operator.
template <typename F>
void WithOp(ReduceOp op, F f) {
  switch (op) {
    case ReduceOp::kSum:
      return f.template operator()<Sum>();
    case ReduceOp::kMin:
      return f.template operator()<Min>();
    case ReduceOp::kMax:
      return f.template operator()<Max>();
    case ReduceOp::kProduct:
      return f.template operator()<Product>();
    case ReduceOp::kNone:
    case ReduceOp::kAverage:
      break;
  }
  COORDD_CHECK(false);  // averages are sums that the executor divides
}

#if defined(__x86_64__)
#define COORDD_WIDE [[gnu::target("avx2")]]
#if defined(__clang__)
#define COORDD_WIDEST [[gnu::target("avx512f,avx512bw,avx512vl")]]
#else
#define COORDD_WIDEST [[gnu::target("avx512f,avx512bw,avx512vl,prefer-vector-width=512")]]
#endif
bool HasWide() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}
bool HasWidest() {
  static const bool has = __builtin_cpu_supports("avx512f") != 0 &&
                          __builtin_cpu_supports("avx512bw") != 0 &&
                          __builtin_cpu_supports("avx512vl") != 0;
  return has;
}
#else
#define COORDD_WIDE
#define COORDD_WIDEST
bool HasWide() { return false; }
bool HasWidest() { return false; }
#endif

template <typename Element, typename Op>
COORDD_WIDE void ReduceLoopWide(std::byte* dst, const std::byte* a, const std::byte* b,
                                int64_t count) {
  ReduceLoop<Element, Op>(dst, a, b, count);
}

template <typename Element>
void ReduceElements(ReduceOp op, std::byte* dst, const std::byte* a, const std::byte* b,
                    int64_t count) {
  WithOp(op, [&]<typename Op>() {
    HasWide() ? ReduceLoopWide<Element, Op>(dst, a, b, count)
              : ReduceLoop<Element, Op>(dst, a, b, count);
  });
}

template <typename Element, typename Op>
COORDD_WIDE void ReduceTwiceWide(std::byte* dst, std::byte* also, const std::byte* a,
                                 const std::byte* b, int64_t count) {
  ReduceTwiceLoop<Element, Op>(dst, also, a, b, count);
}

// A whole cache line a store: it is taken from the other core once.
template <typename Element, typename Op>
COORDD_WIDEST void ReduceTwiceWidest(std::byte* dst, std::byte* also, const std::byte* a,
                                     const std::byte* b, int64_t count) {
  ReduceTwiceLoop<Element, Op>(dst, also, a, b, count);
}

template <typename Element>
void ReduceTwiceElements(ReduceOp op, std::byte* dst, std::byte* also, const std::byte* a,
                         const std::byte* b, int64_t count) {
  WithOp(op, [&]<typename Op>() {
    HasWidest() ? ReduceTwiceWidest<Element, Op>(dst, also, a, b, count)
    : HasWide() ? ReduceTwiceWide<Element, Op>(dst, also, a, b, count)
                : ReduceTwiceLoop<Element, Op>(dst, also, a, b, count);
  });
}

// Four sources in one pass. As above, no iteration needs another one's.
template <typename Element, typename Op>
[[gnu::always_inline]] inline void ReduceFourLoop(std::byte* dst, const std::byte* a,
                                                  const std::byte* b, const std::byte* c,
                                                  const std::byte* d, int64_t count) {
  using Stored = typename Element::Stored;
  using Computed = typename Element::Computed;
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC ivdep
#endif
  for (int64_t i = 0; i < count; ++i) {
    Computed made = Element::Load(LoadAt<Stored>(a, i));
    made = Op::template Apply<Computed>(made, Element::Load(LoadAt<Stored>(b, i)));
    made = Op::template Apply<Computed>(made, Element::Load(LoadAt<Stored>(c, i)));
    made = Op::template Apply<Computed>(made, Element::Load(LoadAt<Stored>(d, i)));
    StoreAt<Stored>(dst, i, Element::Store(made));
  }
}

template <typename Element, typename Op>
COORDD_WIDE void ReduceFourWide(std::byte* dst, const std::byte* a, const std::byte* b,
                                const std::byte* c, const std::byte* d, int64_t count) {
  ReduceFourLoop<Element, Op>(dst, a, b, c, d, count);
}

template <typename Element>
void ReduceFourElements(ReduceOp op, std::byte* dst, absl::Span<const std::byte* const> s,
                        int64_t count) {
  WithOp(op, [&]<typename Op>() {
    HasWide() ? ReduceFourWide<Element, Op>(dst, s[0], s[1], s[2], s[3], count)
              : ReduceFourLoop<Element, Op>(dst, s[0], s[1], s[2], s[3], count);
  });
}

// A tile of the result, in the type in which it is computed, stays in the first-level cache while
// one source after the other is added.
template <typename Element, typename Op>
[[gnu::always_inline]] inline void ReduceTiles(std::byte* dst,
                                               absl::Span<const std::byte* const> sources,
                                               int64_t count) {
  using Stored = typename Element::Stored;
  using Computed = typename Element::Computed;
  constexpr int64_t kTile = 512;
  alignas(64) std::byte tile[kTile * sizeof(Computed)];
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t size = std::min(kTile, count - begin);
    const int64_t offset = begin * static_cast<int64_t>(sizeof(Stored));
    const std::byte* const first = sources[0] + offset;
    for (int64_t i = 0; i < size; ++i)
      StoreAt<Computed>(tile, i, Element::Load(LoadAt<Stored>(first, i)));
    for (size_t s = 1; s < sources.size(); ++s) {
      const std::byte* const source = sources[s] + offset;
      for (int64_t i = 0; i < size; ++i) {
        const Computed x = LoadAt<Computed>(tile, i);
        const Computed y = Element::Load(LoadAt<Stored>(source, i));
        StoreAt<Computed>(tile, i, Op::template Apply<Computed>(x, y));
      }
    }
    for (int64_t i = 0; i < size; ++i)
      StoreAt<Stored>(dst + offset, i, Element::Store(LoadAt<Computed>(tile, i)));
  }
}

template <typename Element, typename Op>
COORDD_WIDE void ReduceTilesWide(std::byte* dst, absl::Span<const std::byte* const> sources,
                                 int64_t count) {
  ReduceTiles<Element, Op>(dst, sources, count);
}

template <typename Element>
void ReduceRoundingOnce(ReduceOp op, std::byte* dst, absl::Span<const std::byte* const> sources,
                        int64_t count) {
  WithOp(op, [&]<typename Op>() {
    HasWide() ? ReduceTilesWide<Element, Op>(dst, sources, count)
              : ReduceTiles<Element, Op>(dst, sources, count);
  });
}

// Truncates toward zero, saturates; a NaN gives 0. The bounds are powers of two (or zero), exact in
// float64, where max() itself may not be.
template <typename T>
T TruncateTo(double value) {
  const double above = std::ldexp(1.0, std::numeric_limits<T>::digits);
  const double lowest = static_cast<double>(std::numeric_limits<T>::lowest());
  if (value != value) return 0;
  if (value >= above) return std::numeric_limits<T>::max();
  if (value <= lowest) return std::numeric_limits<T>::lowest();
  return static_cast<T>(value);
}

template <typename Element>
void ScaleElements(double factor, std::byte* dst, const std::byte* src, int64_t count) {
  using Stored = typename Element::Stored;
  using Computed = typename Element::Computed;
  for (int64_t i = 0; i < count; ++i) {
    const Computed value = Element::Load(LoadAt<Stored>(src, i));
    Computed scaled;
    if constexpr (std::is_same_v<Computed, bool>) {
      scaled = value && factor != 0.0;
    } else if constexpr (std::is_floating_point_v<Computed>) {
      scaled = value * static_cast<Computed>(factor);
    } else {
      scaled = TruncateTo<Computed>(static_cast<double>(value) * factor);
    }
    StoreAt<Stored>(dst, i, Element::Store(scaled));
  }
}

template <typename T>
T Identity(ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  switch (op) {
    case ReduceOp::kProduct:
      return T{1};
    case ReduceOp::kMin:
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case ReduceOp::kMax:
      return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    default:
      return std::is_floating_point_v<T> ? static_cast<T>(-0.0) : T{0};
  }
}

// Calls f.template operator()<Element>() for the element of `dtype`.
template <typename F>
void WithElement(DataType dtype, F f) {
  switch (dtype) {
    case DataType::kUint8:
      return f.template operator()<Plain<uint8_t>>();
    case DataType::kInt8:
      return f.template operator()<Plain<int8_t>>();
    case DataType::kUint16:
      return f.template operator()<Plain<uint16_t>>();
    case DataType::kInt16:
      return f.template operator()<Plain<int16_t>>();
    case DataType::kUint32:
      return f.template operator()<Plain<uint32_t>>();
    case DataType::kInt32:
      return f.template operator()<Plain<int32_t>>();
    case DataType::kUint64:
      return f.template operator()<Plain<uint64_t>>();
    case DataType::kInt64:
      return f.template operator()<Plain<int64_t>>();
    case DataType::kFloat16:
      return f.template operator()<Float16>();
    case DataType::kBfloat16:
      return f.template operator()<Bfloat16>();
    case DataType::kFloat32:
      return f.template operator()<Plain<float>>();
    case DataType::kFloat64:
      return f.template operator()<Plain<double>>();
    case DataType::kBool:
      return f.template operator()<Bool>();
    case DataType::kFloat8E4m3fn:
      return f.template operator()<Float8<Float8E4m3fnFormat>>();
    case DataType::kFloat8E5m2:
      return f.template operator()<Float8<Float8E5m2Format>>();
  }
  COORDD_CHECK(false);  // dtypes from the wire are checked before
}

}  // namespace

void Reduce(DataType dtype, ReduceOp op, std::byte* dst, const std::byte* a, const std::byte* b,
            int64_t count) {
  WithElement(dtype, [&]<typename Element>() { ReduceElements<Element>(op, dst, a, b, count); });
}

void ReduceTwice(DataType dtype, ReduceOp op, std::byte* dst, std::byte* also, const std::byte* a,
                 const std::byte* b, int64_t count) {
  WithElement(
      dtype, [&]<typename Element>() { ReduceTwiceElements<Element>(op, dst, also, a, b, count); });
}

void ReduceAll(DataType dtype, ReduceOp op, std::byte* dst,
               absl::Span<const std::byte* const> sources, int64_t count) {
  COORDD_CHECK(!sources.empty());
  if (sources.size() == 2) return Reduce(dtype, op, dst, sources[0], sources[1], count);
  if (sources.size() == 4) {
    return WithElement(
        dtype, [&]<typename Element>() { ReduceFourElements<Element>(op, dst, sources, count); });
  }
  switch (dtype) {
    case DataType::kFloat16:
      return ReduceRoundingOnce<Float16>(op, dst, sources, count);
    case DataType::kBfloat16:
      return ReduceRoundingOnce<Bfloat16>(op, dst, sources, count);
    case DataType::kFloat8E4m3fn:
      return ReduceRoundingOnce<Float8<Float8E4m3fnFormat>>(op, dst, sources, count);
    case DataType::kFloat8E5m2:
      return ReduceRoundingOnce<Float8<Float8E5m2Format>>(op, dst, sources, count);
    default:
      break;
  }
  // Rounding after each source is what these types do anyway. `dst` is written last, since it may
  // be a source.
  constexpr int64_t kTileBytes = 4096;
  alignas(64) std::byte tile[kTileBytes];
  const int64_t element_bytes = SizeOf(dtype);
  for (int64_t at = 0; at < count * element_bytes; at += kTileBytes) {
    const int64_t tile_count = std::min(kTileBytes, count * element_bytes - at) / element_bytes;
    const std::byte* made = sources[0] + at;
    for (size_t s = 1; s + 1 < sources.size(); ++s) {
      Reduce(dtype, op, tile, made, sources[s] + at, tile_count);
      made = tile;
    }
    if (sources.size() > 1) {
      Reduce(dtype, op, dst + at, made, sources.back() + at, tile_count);
    } else {
      CopyBytes(dst + at, made, tile_count * element_bytes);
    }
  }
}

void FillIdentity(DataType dtype, ReduceOp op, std::byte* dst, int64_t count) {
  COORDD_CHECK(op != ReduceOp::kNone && op != ReduceOp::kAverage);
  WithElement(dtype, [&]<typename Element>() {
    const auto value = Element::Store(Identity<typename Element::Computed>(op));
    for (int64_t i = 0; i < count; ++i) StoreAt<typename Element::Stored>(dst, i, value);
  });
}

void CopyScaled(DataType dtype, double factor, std::byte* dst, const std::byte* src,
                int64_t count) {
  if (factor == 1.0) {
    CopyBytes(dst, src, count * SizeOf(dtype));
    return;
  }
  WithElement(dtype, [&]<typename Element>() { ScaleElements<Element>(factor, dst, src, count); });
}

}  // namespace coordd
