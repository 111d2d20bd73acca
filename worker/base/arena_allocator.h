// Divides a range of offsets into blocks. PURE.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace coordd {

// First fit, lowest offset first, so that what is freed is used again before fresh pages are;
// neighbours that are free are one. Blocks are few and long-lived (fusion buffers, staging of a
// lane). One thread.
class ArenaAllocator {
 public:
  // Blocks begin and end on pages, so that a free one can be given back to the kernel.
  static constexpr int64_t kGranularityBytes = 4096;

  struct Allocation {
    int64_t offset_bytes = 0;
    int64_t size_bytes = 0;
  };

  // Allocates from [begin, end), both multiples of the granularity.
  ArenaAllocator(int64_t begin, int64_t end);

  // Allocates at least one byte, rounded up; nullopt: there is no such gap.
  std::optional<Allocation> Allocate(int64_t size_bytes);
  // REQUIRES: `offset_bytes` is that of a block; which is returned.
  Allocation Free(int64_t offset_bytes);

 private:
  std::map<int64_t, int64_t> free_;  // size by offset
  std::map<int64_t, int64_t> used_;
};

}  // namespace coordd
