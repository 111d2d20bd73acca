#include "worker/base/arena_allocator.h"

#include <algorithm>
#include <iterator>

#include "common/base/check.h"

namespace coordd {

ArenaAllocator::ArenaAllocator(int64_t begin, int64_t end) {
  COORDD_CHECK(begin >= 0 && begin <= end && begin % kGranularityBytes == 0 &&
               end % kGranularityBytes == 0);
  if (begin < end) free_[begin] = end - begin;
}

std::optional<ArenaAllocator::Allocation> ArenaAllocator::Allocate(int64_t size_bytes) {
  const int64_t wanted_bytes = std::max<int64_t>(size_bytes, 1);
  auto gap = std::find_if(free_.begin(), free_.end(),
                          [&](const auto& range) { return range.second >= wanted_bytes; });
  if (gap == free_.end()) return std::nullopt;
  const int64_t pages = (wanted_bytes + kGranularityBytes - 1) / kGranularityBytes;
  const Allocation block{gap->first, pages * kGranularityBytes};
  const int64_t left_bytes = gap->second - block.size_bytes;
  free_.erase(gap);
  if (left_bytes > 0) free_[block.offset_bytes + block.size_bytes] = left_bytes;
  used_[block.offset_bytes] = block.size_bytes;
  return block;
}

ArenaAllocator::Allocation ArenaAllocator::Free(int64_t offset_bytes) {
  const auto used = used_.find(offset_bytes);
  COORDD_CHECK(used != used_.end());
  const Allocation block{used->first, used->second};
  used_.erase(used);
  auto range = free_.emplace(block.offset_bytes, block.size_bytes).first;
  const auto next = std::next(range);
  if (next != free_.end() && next->first == range->first + range->second) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range == free_.begin()) return block;
  const auto before = std::prev(range);
  if (before->first + before->second != range->first) return block;
  before->second += range->second;
  free_.erase(range);
  return block;
}

}  // namespace coordd
