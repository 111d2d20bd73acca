#include "worker/copy_bytes.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace coordd {

#if defined(__x86_64__)

// Four stores of 16 bytes fill a line of the write-combining buffer, which leaves the core whole:
// wider stores would need run-time dispatch and gain nothing, since memory is the limit.
void StreamBytes(std::byte* to, const std::byte* from, int64_t size_bytes) {
  constexpr int64_t kLineBytes = 64;
  const int64_t misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLineBytes);
  const int64_t head = std::min(size_bytes, (kLineBytes - misaligned) % kLineBytes);
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kLineBytes <= size_bytes; at += kLineBytes) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + at, from + at, static_cast<size_t>(size_bytes - at));
}

void StreamFence() { _mm_sfence(); }

#else

void StreamBytes(std::byte* to, const std::byte* from, int64_t size_bytes) {
  std::memcpy(to, from, static_cast<size_t>(size_bytes));
}

void StreamFence() {}

#endif

}  // namespace coordd
