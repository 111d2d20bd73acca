// Memory as that of a node's ranks, which threads of the test share: all zero. A mapping, since the
// address sanitizer marks each byte of what comes from the heap when it is made and when it goes.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/check.h"
#include "worker/node/node_board.h"
#include "worker/node/node_lane.h"

namespace coordd {

class MappedMemories {
 public:
  explicit MappedMemories(int32_t ranks) {
    constexpr size_t kBytes = size_t{112} << 20;  // pages that nobody touches take nothing
    for (int32_t r = 0; r < ranks; ++r) {
      void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      COORDD_CHECK(memory != MAP_FAILED);
      memories_.emplace_back(static_cast<std::byte*>(memory), kBytes);
    }
  }
  ~MappedMemories() {
    for (const NodeMemory& memory : memories_) munmap(memory.data(), memory.size());
  }
  MappedMemories(const MappedMemories&) = delete;
  MappedMemories& operator=(const MappedMemories&) = delete;

  const std::vector<NodeMemory>& all() const { return memories_; }
  NodeBoard board(int32_t rank) const {
    return NodeBoard(memories_[static_cast<size_t>(rank)].data());
  }

 private:
  std::vector<NodeMemory> memories_;
};

}  // namespace coordd
