// What coordd computes on a GPU: packing, unpacking, scaling and casting of many tensors in one
// launch, and the gate. No vendor header is included, so that three compilers take it: NVRTC and
// nvcc for the device, g++ for tests on a machine without one (tests/support/gpu/host_kernels.cc,
// where one "thread" runs after the other). tools/make-kernels makes kernels.ptx of it.
//
// The table of tensors is the kernel's argument, so nothing has to be copied to the device first:
// 128 rows of 24 bytes, within the 4 KiB that every driver takes. blockIdx.y is the row; the blocks
// and threads of x share its elements.

namespace coordd_kernels {

using Byte = unsigned char;
using Size = unsigned long long;

constexpr int kRows = 128;

struct Row {
  const void* from;
  void* to;
  Size count;  // elements; for a plain copy, bytes
};
struct Table {
  Row rows[kRows];
};

struct alignas(16) Wide {
  unsigned words[4];
};

// --- conversions -----------------------------------------------------------------------------

struct Float16 {
  unsigned short bits;
};
struct Bfloat16 {
  unsigned short bits;
};
struct Float8E4m3fn {
  static constexpr unsigned kFractionBits = 3, kBias = 7, kSpecial = 0x7f, kOverflow = 0x7e;
  Byte bits;
};
struct Float8E5m2 {
  static constexpr unsigned kFractionBits = 2, kBias = 15, kSpecial = 0x7c, kOverflow = 0x7c;
  Byte bits;
};
struct Bool {
  Byte byte;
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
__device__ inline float ToFloat(Float16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
__device__ inline Float16 ToFloat16(float value) {
  Float16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}
__device__ inline unsigned Bits(float value) { return __float_as_uint(value); }
__device__ inline float FromBits(unsigned bits) { return __uint_as_float(bits); }
__device__ inline unsigned LoadWord(const unsigned* word) {
  return *static_cast<const volatile unsigned*>(word);
}
__device__ inline Size Nanoseconds() {
  Size now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
// The context ends with an error, which everything that waits for the device gets.
__device__ inline void EndContext() { asm volatile("trap;"); }
#else
inline float ToFloat(Float16 value) { return coordd::Float16ToFloat32(value.bits); }
inline Float16 ToFloat16(float value) { return {coordd::Float32ToFloat16(value)}; }
inline unsigned Bits(float value) { return std::bit_cast<unsigned>(value); }
inline float FromBits(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned LoadWord(const unsigned* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
// Nanoseconds and EndContext: host_kernels.cc's.
#endif

__device__ inline float ToFloat(Bfloat16 value) {
  return FromBits(static_cast<unsigned>(value.bits) << 16);
}
// Rounds to nearest, ties to even. Every NaN becomes one quiet NaN.
__device__ inline Bfloat16 ToBfloat16(float value) {
  const unsigned bits = Bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return {static_cast<unsigned short>(((bits >> 16) & 0x8000u) | 0x7fc0u)};
  return {static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// The two float8, as worker/numeric/float8.h says: devices before compute capability 8.9 have no
// instruction for them, and the one that later ones have ends float8_e5m2 at its largest number.
template <typename Float8>
__device__ inline float WidenFloat8(Float8 value) {
  constexpr unsigned kShift = 23 - Float8::kFractionBits;
  const unsigned magnitude = value.bits & 0x7fu;
  unsigned wide = (magnitude << kShift) + ((127u - Float8::kBias) << 23);
  if (magnitude >= Float8::kSpecial) {
    wide = 0x7f800000u | ((magnitude << kShift) & 0x7fffffu);
  } else if (magnitude >> Float8::kFractionBits == 0) {
    wide = Bits(FromBits(wide + (1u << 23)) - FromBits((128u - Float8::kBias) << 23));
  }
  return FromBits(((value.bits & 0x80u) << 24) | wide);
}
// Rounds to nearest, ties to even. Every NaN becomes 0x7f with its sign.
template <typename Float8>
__device__ inline Float8 NarrowToFloat8(float value) {
  constexpr unsigned kShift = 23 - Float8::kFractionBits;
  constexpr unsigned kRounder = (151u - Float8::kBias - Float8::kFractionBits) << 23;
  const unsigned bits = Bits(value);
  const unsigned magnitude = bits & 0x7fffffffu;
  unsigned narrow = 0x7fu;
  if (magnitude <= 0x7f800000u) {
    const unsigned rebiased = magnitude - ((127u - Float8::kBias) << 23);
    narrow = magnitude < ((128u - Float8::kBias) << 23)
                 ? Bits(FromBits(magnitude) + FromBits(kRounder)) - kRounder
                 : (rebiased + (1u << (kShift - 1)) - 1u + ((magnitude >> kShift) & 1u)) >> kShift;
    if (narrow > Float8::kOverflow) narrow = Float8::kOverflow;
  }
  return {static_cast<Byte>(((bits >> 24) & 0x80u) | narrow)};
}

// What an element is multiplied as, and how it goes there and back: as worker/numeric/reduce_kernels.h
// says. Integers in float64, truncated toward zero, ending at the bounds of their type.
template <typename T>
struct Element;
template <>
struct Element<float> {
  using Factor = float;
  __device__ static float Load(float value) { return value; }
  __device__ static float Store(float value) { return value; }
};
template <>
struct Element<Bool> {  // the truth of the product
  using Factor = double;
  __device__ static double Load(Bool value) { return value.byte != 0 ? 1.0 : 0.0; }
  __device__ static Bool Store(double value) { return {static_cast<Byte>(value != 0.0)}; }
};
template <>
struct Element<double> {
  using Factor = double;
  __device__ static double Load(double value) { return value; }
  __device__ static double Store(double value) { return value; }
};
template <>
struct Element<Float16> {
  using Factor = float;
  __device__ static float Load(Float16 value) { return ToFloat(value); }
  __device__ static Float16 Store(float value) { return ToFloat16(value); }
};
template <>
struct Element<Bfloat16> {
  using Factor = float;
  __device__ static float Load(Bfloat16 value) { return ToFloat(value); }
  __device__ static Bfloat16 Store(float value) { return ToBfloat16(value); }
};

template <typename Float8>
struct Float8Element {
  using Factor = float;
  __device__ static float Load(Float8 value) { return WidenFloat8(value); }
  __device__ static Float8 Store(float value) { return NarrowToFloat8<Float8>(value); }
};
template <>
struct Element<Float8E4m3fn> : Float8Element<Float8E4m3fn> {};
template <>
struct Element<Float8E5m2> : Float8Element<Float8E5m2> {};

// `bottom` and `top` are the bounds of T; 2^63 and 2^64 have no double below them but the next
// smaller one, which is why `top` is compared with >=.
template <typename T>
__device__ inline T Truncate(double value, T bottom, T top) {
  if (!(value == value)) return 0;
  if (value <= static_cast<double>(bottom)) return bottom;
  if (value >= static_cast<double>(top)) return top;
  return static_cast<T>(value);
}
template <typename T>
struct IntegerElement {
  using Factor = double;
  static constexpr bool kSigned = static_cast<T>(-1) < static_cast<T>(0);
  static constexpr T kTop = kSigned ? static_cast<T>((Size(1) << (8 * sizeof(T) - 1)) - 1)
                                    : static_cast<T>(~Size(0));
  static constexpr T kBottom = kSigned ? static_cast<T>(-kTop - 1) : static_cast<T>(0);
  __device__ static double Load(T value) { return static_cast<double>(value); }
  __device__ static T Store(double value) { return Truncate<T>(value, kBottom, kTop); }
};
template <>
struct Element<signed char> : IntegerElement<signed char> {};
template <>
struct Element<unsigned char> : IntegerElement<unsigned char> {};
template <>
struct Element<short> : IntegerElement<short> {};
template <>
struct Element<unsigned short> : IntegerElement<unsigned short> {};
template <>
struct Element<int> : IntegerElement<int> {};
template <>
struct Element<unsigned> : IntegerElement<unsigned> {};
template <>
struct Element<long long> : IntegerElement<long long> {};
template <>
struct Element<unsigned long long> : IntegerElement<unsigned long long> {};

// --- loops -----------------------------------------------------------------------------------

__device__ inline Size ThreadIndex() {
  return static_cast<Size>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline Size ThreadCount() { return static_cast<Size>(gridDim.x) * blockDim.x; }
__device__ inline Size Address(const void* pointer) { return reinterpret_cast<Size>(pointer); }

template <typename Unit>
__device__ inline void CopyUnits(const void* from, void* to, Size units) {
  const Unit* source = static_cast<const Unit*>(from);
  Unit* target = static_cast<Unit*>(to);
  for (Size i = ThreadIndex(); i < units; i += ThreadCount()) target[i] = source[i];
}

// The widest unit that both addresses allow, and bytes for what is left over at the end.
__device__ inline void CopyRow(const Row& row) {
  const Size misaligned = Address(row.from) | Address(row.to);
  Size done = 0;
  if (misaligned % 16 == 0) {
    CopyUnits<Wide>(row.from, row.to, row.count / 16);
    done = row.count / 16 * 16;
  } else if (misaligned % 4 == 0) {
    CopyUnits<unsigned>(row.from, row.to, row.count / 4);
    done = row.count / 4 * 4;
  }
  CopyUnits<Byte>(static_cast<const Byte*>(row.from) + done, static_cast<Byte*>(row.to) + done,
                  row.count - done);
}

// to[i] = from[i] * factor, one element after the other.
template <typename From, typename To>
__device__ inline void ScaleElements(const From* from, To* to, Size first, Size count,
                                     typename Element<To>::Factor factor) {
  for (Size i = first + ThreadIndex(); i < count; i += ThreadCount())
    to[i] = Element<To>::Store(Element<From>::Load(from[i]) * factor);
}

// The same with one 16-byte access for what fits into it. Between types of different sizes the
// narrower side goes in smaller pieces, of 16 bytes divided by the ratio of the sizes.
template <typename From, typename To>
__device__ inline void ScaleRow(const Row& row, double factor) {
  constexpr int kWidest = sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To);
  constexpr int kPerPack = 16 / kWidest;
  struct alignas(kPerPack * sizeof(From)) FromPack {
    From elements[kPerPack];
  };
  struct alignas(kPerPack * sizeof(To)) ToPack {
    To elements[kPerPack];
  };
  using Factor = typename Element<To>::Factor;
  const Factor by = static_cast<Factor>(factor);
  const From* from = static_cast<const From*>(row.from);
  To* to = static_cast<To*>(row.to);
  Size done = 0;
  if (Address(from) % sizeof(FromPack) == 0 && Address(to) % sizeof(ToPack) == 0) {
    const Size packs = row.count / kPerPack;
    for (Size i = ThreadIndex(); i < packs; i += ThreadCount()) {
      const FromPack in = reinterpret_cast<const FromPack*>(from)[i];
      ToPack out;
      for (int k = 0; k < kPerPack; ++k)
        out.elements[k] = Element<To>::Store(Element<From>::Load(in.elements[k]) * by);
      reinterpret_cast<ToPack*>(to)[i] = out;
    }
    done = packs * kPerPack;
  }
  ScaleElements(from, to, done, row.count, by);
}

}  // namespace coordd_kernels

// --- entries: DeviceKernels (device_kernels.cc) finds them by these names ------------------------

using coordd_kernels::ScaleRow;
using coordd_kernels::Table;

extern "C" __global__ void coordd_copy(const Table table) {
  coordd_kernels::CopyRow(table.rows[blockIdx.y]);
}

extern "C" __global__ void coordd_scale_uint8(const Table table, double factor) {
  ScaleRow<unsigned char, unsigned char>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_scale_int8(const Table table, double factor) {
  ScaleRow<signed char, signed char>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_scale_uint16(const Table table, double factor) {
  ScaleRow<unsigned short, unsigned short>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_scale_int16(const Table table, double factor) {
  ScaleRow<short, short>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_scale_uint32(const Table table, double factor) {
  ScaleRow<unsigned, unsigned>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_scale_int32(const Table table, double factor) {
  ScaleRow<int, int>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_scale_uint64(const Table table, double factor) {
  ScaleRow<unsigned long long, unsigned long long>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_scale_int64(const Table table, double factor) {
  ScaleRow<long long, long long>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_scale_float16(const Table table, double factor) {
  ScaleRow<coordd_kernels::Float16, coordd_kernels::Float16>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_scale_bfloat16(const Table table, double factor) {
  ScaleRow<coordd_kernels::Bfloat16, coordd_kernels::Bfloat16>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_scale_float8_e4m3fn(const Table table, double factor) {
  ScaleRow<coordd_kernels::Float8E4m3fn, coordd_kernels::Float8E4m3fn>(table.rows[blockIdx.y],
                                                                       factor);
}
extern "C" __global__ void coordd_scale_float8_e5m2(const Table table, double factor) {
  ScaleRow<coordd_kernels::Float8E5m2, coordd_kernels::Float8E5m2>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_scale_float32(const Table table, double factor) {
  ScaleRow<float, float>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_scale_bool(const Table table, double factor) {
  ScaleRow<coordd_kernels::Bool, coordd_kernels::Bool>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_scale_float64(const Table table, double factor) {
  ScaleRow<double, double>(table.rows[blockIdx.y], factor);
}

extern "C" __global__ void coordd_cast_float32_float16(const Table table, double factor) {
  ScaleRow<float, coordd_kernels::Float16>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_cast_float32_bfloat16(const Table table, double factor) {
  ScaleRow<float, coordd_kernels::Bfloat16>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_cast_float16_float32(const Table table, double factor) {
  ScaleRow<coordd_kernels::Float16, float>(table.rows[blockIdx.y], factor);
}
extern "C" __global__ void coordd_cast_bfloat16_float32(const Table table, double factor) {
  ScaleRow<coordd_kernels::Bfloat16, float>(table.rows[blockIdx.y], factor);
}

namespace coordd_kernels {

// Returns what the word, in pinned host memory, is when it is no longer 1. After so long (0: never)
// nobody will come to change it: whoever could is behind this kernel, perhaps.
__device__ inline unsigned AwaitGate(const unsigned* word, Size limit_nanoseconds) {
  unsigned value = LoadWord(word);
  if (value != 1) return value;
  const Size started = Nanoseconds();
  while ((value = LoadWord(word)) == 1) {
    if (limit_nanoseconds != 0 && Nanoseconds() - started > limit_nanoseconds) {
      EndContext();
      return value;
    }
    __nanosleep(2000);
  }
  return value;
}

}  // namespace coordd_kernels

// One thread. Behind a collective: its stream stays here while the word is 1, so that nothing reads
// what an aborted collective has left.
extern "C" __global__ void coordd_gate(const unsigned* word, coordd_kernels::Size limit) {
  coordd_kernels::AwaitGate(word, limit);
}

// One block of few threads. The same behind a collective of a graph, which may be launched again
// when its generation is over: then (the word is 2) what it has left, which is no result, is
// overwritten with ones, which no number of floating point has but NaN. `to` and `count`, bytes, of
// each row.
extern "C" __global__ void coordd_seal(const Table table, const unsigned* word,
                                       coordd_kernels::Size limit, unsigned rows) {
  if (coordd_kernels::AwaitGate(word, limit) != 2) return;
  for (unsigned r = 0; r < rows; ++r) {
    const coordd_kernels::Row& row = table.rows[r];
    coordd_kernels::Byte* to = static_cast<coordd_kernels::Byte*>(row.to);
    for (coordd_kernels::Size i = threadIdx.x; i < row.count; i += blockDim.x) to[i] = 0xff;
  }
}
