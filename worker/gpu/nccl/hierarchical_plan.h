// A hierarchical allreduce as data: how the buffer is cut, and what follows what on the stream.
// PURE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace coordd {

// A part of the buffer that goes its way by itself. Its elements are cut into a slice for each rank
// of the node, all equal but for the last one, which takes the rest.
struct HierarchyChunk {
  int64_t offset_bytes = 0;  // in the buffer
  int64_t slice_bytes = 0;   // of each rank of the node
  int64_t rest_bytes = 0;    // behind the slices: the last rank's
  friend bool operator==(const HierarchyChunk&, const HierarchyChunk&) = default;
};

struct HierarchyCall {
  enum class Kind {
    kReduceScatter,  // within the node: each rank has its slice of the node's sum
    kToHost,         // the slice is copied to pinned memory, and the exchange between nodes begins
    kFromHost,       // the stream waits for the exchange; the slice is copied back
    kAllgather,      // within the node
  };
  Kind kind = Kind::kReduceScatter;
  size_t chunk = 0;
  friend bool operator==(const HierarchyCall&, const HierarchyCall&) = default;
};

struct HierarchyShape {
  int64_t bytes = 0;          // of the buffer: a multiple of element_bytes
  int64_t element_bytes = 1;  // 1, 2, 4 or 8
  int32_t ranks_per_node = 1;
  int64_t chunk_bytes = int64_t{4} << 20;  // unless that made more chunks than kHierarchyChunksMax
};

// Chunks of one buffer: each costs some six launches, and a driver queues 1024 before a launch
// blocks.
inline constexpr int64_t kHierarchyChunksMax = 16;
// Pieces of pinned memory, used in turn: one is in the exchange while the next is on its way there.
inline constexpr size_t kHierarchySlots = 2;

// Equal on all ranks with equal shapes.
std::vector<HierarchyChunk> HierarchyChunks(const HierarchyShape& shape);
// In the order of the stream. The exchange of a chunk runs while the next one is reduced: between a
// kToHost and its kFromHost stand the steps that bring the next chunk to the host. A slot (chunk %
// kHierarchySlots) has been read before it is written again.
std::vector<HierarchyCall> HierarchySteps(size_t chunks);

// Where the slice of the rank in place `local` of its node is, in the buffer.
struct HierarchySlice {
  int64_t offset_bytes = 0;
  int64_t bytes = 0;
};
HierarchySlice SliceOf(const HierarchyChunk& chunk, int32_t local, int32_t ranks_per_node);

}  // namespace coordd
