// Where the tensors of a fused batch lie in the fused buffer. Every rank computes the same layout
// from the same specs, so no offsets travel. PURE.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

namespace coordd {

// Tensors start at multiples of a cache line, so that they can be packed and reduced with aligned
// vector instructions. A multiple of every element size.
inline constexpr int64_t kFusionAlignmentBytes = 64;

// Smallest multiple of kFusionAlignmentBytes that holds `size_bytes`.
int64_t AlignedSize(int64_t size_bytes);

struct FusedRange {
  int64_t offset_bytes = 0;  // in the fused buffer; a multiple of kFusionAlignmentBytes
  int64_t size_bytes = 0;    // of the tensor's part alone, without padding
  friend bool operator==(const FusedRange&, const FusedRange&) = default;
};

// One run of tensors: allreduce and broadcast. The bytes between two tensors take part in the
// collective, with whatever value they have.
struct FlatLayout {
  absl::InlinedVector<FusedRange, 1> slots;  // by tensor
  int64_t total_bytes = 0;
};
FlatLayout LayOutFlat(absl::Span<const int64_t> tensor_bytes);

// One block per rank, and in each block every tensor's part for that rank: allgather (the block
// that the rank contributes) and reducescatter (the block that the rank ends up with).
struct BlockLayout {
  std::vector<int64_t> block_bytes;         // by rank: what CollectiveArgs takes
  std::vector<int64_t> block_offset_bytes;  // by rank
  std::vector<std::vector<FusedRange>>
      slots;  // [rank][tensor]; offsets count from the buffer's start
  int64_t total_bytes = 0;
};
// `tensor_block_bytes[tensor][rank]`. REQUIRES: each tensor has a part for each of `world_size`
// ranks, 0 bytes allowed.
BlockLayout LayOutBlocks(absl::Span<const std::vector<int64_t>> tensor_block_bytes,
                         int32_t world_size);

// How reducescatter splits the first dimension: rows / world_size each, and the remainder one row
// each to the lowest ranks.
struct RowRange {
  int64_t first = 0;
  int64_t rows = 0;
  friend bool operator==(const RowRange&, const RowRange&) = default;
};
// REQUIRES: rows >= 0, 0 <= rank < world_size.
RowRange SplitRows(int64_t rows, int32_t world_size, int32_t rank);

}  // namespace coordd
