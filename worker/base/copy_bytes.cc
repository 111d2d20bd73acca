#include "worker/base/copy_bytes.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#endif

namespace coordd {
namespace {

constexpr int64_t kLineBytes = 64;

// As Linux tells it, in KiB ("32768K"); 0 where it does not. sysconf's figure counts the caches of
// all cores of some processors together.
int64_t ThirdLevelCacheBytes() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  int64_t kibibytes = 0;
  return file >> kibibytes ? kibibytes << 10 : 0;
}

}  // namespace

int64_t StreamBytesMin() {
  static const int64_t bytes = std::max(int64_t{8} << 20, ThirdLevelCacheBytes() / 4);
  return bytes;
}

#if defined(__x86_64__)

namespace {

// Whole lines from `at` on, by loads and stores of 16 bytes; where it ends.
template <typename Store>
int64_t CopyLines(std::byte* to, const std::byte* from, int64_t at, int64_t size_bytes,
                  const Store& store) {
  for (; at + kLineBytes <= size_bytes; at += kLineBytes) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    store(target, a);
    store(target + 1, b);
    store(target + 2, c);
    store(target + 3, d);
  }
  return at;
}

}  // namespace

// Four stores of 16 bytes fill a line of the write-combining buffer, which leaves the core whole:
// wider stores would need run-time dispatch and gain nothing, since memory is the limit.
void StreamBytes(std::byte* to, const std::byte* from, int64_t size_bytes) {
  const int64_t misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLineBytes);
  const int64_t head = std::min(size_bytes, (kLineBytes - misaligned) % kLineBytes);
  std::memcpy(to, from, static_cast<size_t>(head));
  const int64_t at = CopyLines(to, from, head, size_bytes, [](__m128i* target, __m128i value) {
    _mm_stream_si128(target, value);
  });
  std::memcpy(to + at, from + at, static_cast<size_t>(size_bytes - at));
}

void StreamFence() { _mm_sfence(); }

void CopyByVectors(std::byte* to, const std::byte* from, int64_t size_bytes) {
  const int64_t at = CopyLines(to, from, 0, size_bytes, [](__m128i* target, __m128i value) {
    _mm_storeu_si128(target, value);
  });
  std::memcpy(to + at, from + at, static_cast<size_t>(size_bytes - at));
}

namespace {

// PREFETCHW, which compilers emit for __builtin_prefetch only where the whole file may use it.
bool HasFetchToWrite() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (c & bit_PRFCHW) != 0;
  }();
  return has;
}

}  // namespace

void FetchToWrite(const std::byte* begin, int64_t size_bytes) {
  if (!HasFetchToWrite()) return;
  for (int64_t at = 0; at < size_bytes; at += kLineBytes)
    asm volatile("prefetchw %0" : : "m"(begin[at]));
}

#else

void StreamBytes(std::byte* to, const std::byte* from, int64_t size_bytes) {
  std::memcpy(to, from, static_cast<size_t>(size_bytes));
}

void StreamFence() {}

void CopyByVectors(std::byte* to, const std::byte* from, int64_t size_bytes) {
  std::memcpy(to, from, static_cast<size_t>(size_bytes));
}

void FetchToWrite(const std::byte* begin, int64_t size_bytes) {
  for (int64_t at = 0; at < size_bytes; at += kLineBytes) __builtin_prefetch(begin + at, /*rw=*/1);
}

#endif

}  // namespace coordd
