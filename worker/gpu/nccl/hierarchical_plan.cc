#include "worker/gpu/nccl/hierarchical_plan.h"

#include <algorithm>

namespace coordd {
namespace {

// Slices begin where 16 bytes may be moved at a time, and lines of a network card do.
constexpr int64_t kAlignment = 256;

int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

}  // namespace

std::vector<HierarchyChunk> HierarchyChunks(const HierarchyShape& shape) {
  const int64_t ranks = shape.ranks_per_node;
  const int64_t wanted =
      std::max({shape.chunk_bytes, int64_t{1}, (shape.bytes - 1) / kHierarchyChunksMax + 1});
  const int64_t whole = RoundUp(wanted, ranks * kAlignment);
  std::vector<HierarchyChunk> chunks;
  for (int64_t at = 0; at < shape.bytes; at += whole) {
    const int64_t bytes = std::min(whole, shape.bytes - at);
    const int64_t slice = bytes / shape.element_bytes / ranks * shape.element_bytes;
    chunks.push_back({at, slice, bytes - slice * ranks});
  }
  return chunks;
}

std::vector<HierarchyCall> HierarchySteps(size_t chunks) {
  using Kind = HierarchyCall::Kind;
  std::vector<HierarchyCall> steps;
  for (size_t chunk = 0; chunk <= chunks; ++chunk) {
    if (chunk < chunks) {
      steps.push_back({Kind::kReduceScatter, chunk});
      steps.push_back({Kind::kToHost, chunk});
    }
    if (chunk == 0) continue;
    steps.push_back({Kind::kFromHost, chunk - 1});
    steps.push_back({Kind::kAllgather, chunk - 1});
  }
  return steps;
}

HierarchySlice SliceOf(const HierarchyChunk& chunk, int32_t local, int32_t ranks_per_node) {
  const bool last = local == ranks_per_node - 1;
  return {chunk.offset_bytes + local * chunk.slice_bytes,
          chunk.slice_bytes + (last ? chunk.rest_bytes : 0)};
}

}  // namespace coordd
