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

// Copies as memcpy does; with no bytes, and onto themselves, it does nothing.
inline void CopyBytes(std::byte* to, const std::byte* from, int64_t size_bytes) {
  if (size_bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(size_bytes));
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
