// Whether memory that the ranks of a set register becomes a symmetric window. PURE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace coordd {

// What a rank says of its part. All of it is equal where NCCL can make a window: it maps the whole
// allocation on each rank, at one place, which follows from the windows that are there.
struct WindowClaim {
  int64_t size_bytes = 0;
  // Of what coordd_alloc_device has given, which begins where this does; 0: nothing does.
  int64_t allocation_bytes = 0;
  int64_t windows = 0;  // of the set, which this rank has: a digest of their numbers

  friend bool operator==(const WindowClaim&, const WindowClaim&) = default;
};

// The claims of all ranks as an allgather gives them, `size` of them. Returns why they make no
// window; empty: they make one.
std::string WhyNoWindow(absl::Span<const std::byte> claims, int32_t size);

// A digest of the numbers of windows, in their order.
int64_t DigestOf(absl::Span<const int64_t> numbers);

}  // namespace coordd
