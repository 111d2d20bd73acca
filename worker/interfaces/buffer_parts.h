// A buffer that is one run of bytes, or several that lie where their owners have put them. PURE.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace coordd {

// A run of bytes of a buffer, and where in the buffer it begins.
template <typename Byte>
struct BufferPart {
  int64_t offset_bytes = 0;
  absl::Span<Byte> bytes;
};
using InputPart = BufferPart<const std::byte>;
using OutputPart = BufferPart<std::byte>;

// The bytes at an offset, and how many from there on are in one run.
template <typename Byte>
struct BufferRun {
  Byte* data = nullptr;  // nullptr: nobody's, as what is between two tensors
  int64_t size_bytes = 0;
};

// The run at `offset_bytes` of a buffer. `whole` has its size, and without `parts`, which are in
// the order of their offsets and do not overlap, its bytes. REQUIRES: 0 <= offset_bytes < size.
template <typename Byte>
BufferRun<Byte> RunAt(absl::Span<Byte> whole, absl::Span<const BufferPart<Byte>> parts,
                      int64_t offset_bytes) {
  const int64_t size_bytes = static_cast<int64_t>(whole.size());
  if (parts.empty()) return {whole.data() + offset_bytes, size_bytes - offset_bytes};
  const auto behind =
      std::upper_bound(parts.begin(), parts.end(), offset_bytes,
                       [](int64_t at, const auto& part) { return at < part.offset_bytes; });
  const int64_t next = behind == parts.end() ? size_bytes : behind->offset_bytes;
  if (behind == parts.begin()) return {nullptr, next - offset_bytes};
  const BufferPart<Byte>& part = *(behind - 1);
  const int64_t into = offset_bytes - part.offset_bytes;
  const int64_t left = static_cast<int64_t>(part.bytes.size()) - into;
  if (left <= 0) return {nullptr, next - offset_bytes};
  return {part.bytes.data() + into, left};
}

}  // namespace coordd
