// Copies large enough that it matters which caches they pass through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"

namespace coordd {

inline int64_t SizeOf(absl::Span<const std::byte> bytes) {
  return static_cast<int64_t>(bytes.size());
}

// Whether `rep movsb`, by which memcpy (as of Debian 12's glibc) and kernels copy what is large, is
// slow between these addresses on AMD's Zen 3 and 4: sixteen times as slow where the target lies 1
// to 31 bytes behind the source, whole pages left out (sourceware.org, bug 30994). Memory of malloc
// for large arrays lies 16 bytes behind a page's beginning, an arena's at one.
inline bool IsSlowForRepMovsb(const std::byte* to, const std::byte* from) {
  constexpr uintptr_t kPage = 4096, kSlow = 32;
  const uintptr_t behind =
      (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPage;
  return behind != 0 && behind < kSlow;
}

// As memcpy, by stores of 16 bytes.
void CopyByVectors(std::byte* to, const std::byte* from, int64_t size_bytes);

// Copies as memcpy does; with no bytes, and onto themselves, it does nothing.
inline void CopyBytes(std::byte* to, const std::byte* from, int64_t size_bytes) {
  constexpr int64_t kMovsbMin = 2048;
  if (size_bytes <= 0 || to == from) return;
  if (size_bytes >= kMovsbMin && IsSlowForRepMovsb(to, from))
    return CopyByVectors(to, from, size_bytes);
  std::memcpy(to, from, static_cast<size_t>(size_bytes));
}

// As memcpy, but past the caches where the processor can: the stored lines are not read first, and
// what is in the caches stays there. For results larger than the caches, which nobody reads soon.
// Other threads see the bytes only after StreamFence().
void StreamBytes(std::byte* to, const std::byte* from, int64_t size_bytes);
// Orders streamed stores before every later store of this thread.
void StreamFence();

// Results from here on are worth it: a quarter of the third-level cache, which as many ranks share,
// and at least 8 MiB. What fits there is read back sooner than from memory.
int64_t StreamBytesMin();

// Begins to bring the lines of these bytes here, to be written: what is stored soon does not wait
// for them. A hint.
void FetchToWrite(const std::byte* begin, int64_t size_bytes);

}  // namespace coordd
