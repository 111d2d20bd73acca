#include "worker/execute/fusion_layout.h"

#include <algorithm>

#include "common/base/check.h"

namespace coordd {

int64_t AlignedSize(int64_t size_bytes) {
  return (size_bytes + kFusionAlignmentBytes - 1) / kFusionAlignmentBytes * kFusionAlignmentBytes;
}

FlatLayout LayOutFlat(absl::Span<const int64_t> tensor_bytes) {
  FlatLayout layout;
  layout.slots.reserve(tensor_bytes.size());
  for (int64_t size_bytes : tensor_bytes) {
    layout.slots.push_back({layout.total_bytes, size_bytes});
    layout.total_bytes += AlignedSize(size_bytes);
  }
  return layout;
}

BlockLayout LayOutBlocks(absl::Span<const std::vector<int64_t>> tensor_block_bytes,
                         int32_t world_size) {
  BlockLayout layout;
  const size_t ranks = static_cast<size_t>(world_size);
  layout.slots.resize(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    layout.block_offset_bytes.push_back(layout.total_bytes);
    layout.slots[rank].reserve(tensor_block_bytes.size());
    for (const std::vector<int64_t>& parts : tensor_block_bytes) {
      COORDD_CHECK(parts.size() == ranks);
      layout.slots[rank].push_back({layout.total_bytes, parts[rank]});
      layout.total_bytes += AlignedSize(parts[rank]);
    }
    layout.block_bytes.push_back(layout.total_bytes - layout.block_offset_bytes[rank]);
  }
  return layout;
}

RowRange SplitRows(int64_t rows, int32_t world_size, int32_t rank) {
  COORDD_CHECK(rows >= 0 && rank >= 0 && rank < world_size);
  const int64_t each = rows / world_size;
  const int64_t extra = rows % world_size;
  return {rank * each + std::min<int64_t>(rank, extra), each + (rank < extra ? 1 : 0)};
}

}  // namespace coordd
