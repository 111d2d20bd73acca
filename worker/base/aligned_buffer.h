// Bytes that start on a cache line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "absl/types/span.h"

namespace coordd {

// Owns its bytes, which start uninitialised. Movable.
class AlignedBuffer {
 public:
  static constexpr size_t kAlignmentBytes = 64;

  AlignedBuffer() = default;
  // Check data() for nullptr: the memory may not be there. REQUIRES: size_bytes >= 0.
  explicit AlignedBuffer(int64_t size_bytes)
      : bytes_(static_cast<std::byte*>(::operator new (
            static_cast<size_t>(size_bytes), std::align_val_t{kAlignmentBytes}, std::nothrow))),
        size_bytes_(bytes_ == nullptr ? 0 : size_bytes) {}

  std::byte* data() const { return bytes_.get(); }
  int64_t size_bytes() const { return size_bytes_; }
  absl::Span<std::byte> span() const { return {data(), static_cast<size_t>(size_bytes_)}; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const {
      ::operator delete (bytes, std::align_val_t{kAlignmentBytes});
    }
  };
  std::unique_ptr<std::byte, Free> bytes_;
  int64_t size_bytes_ = 0;
};

}  // namespace coordd
