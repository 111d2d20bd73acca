// A collective as data: what one rank sends, receives and combines, step by step. The families of
// schedules (ring_schedule.h, dimension_schedule.h, recursive_schedule.h, tree_schedule.h,
// pairwise_schedule.h) are pure functions of (self, world size, blocks); CollectiveRun executes any
// of them over any Transport. PURE.
//
// Rules that every schedule keeps (tests/worker/algorithms/schedule_test.cc simulates all of them):
//   - All sends and receives of a step may run at the same time, in any order; the local operations
//     follow when all of them are done, in their order; then comes the next step.
//   - In a step a rank sends to each other rank what is in one range, or by dimensions in several,
//     and none to itself; likewise it receives. Messages to one rank, and from one rank, stand one
//     behind the other in the step and go in their order. The n-th message from a to b is the n-th
//     that b expects from a, of the same size.
//   - What a step receives overlaps nothing that it sends or receives besides, also when input and
//     output are the same memory. What combines in a step comes from one rank.
//   - kInput is never written, unless it is the same memory as kOutput.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/types.h"

namespace coordd {

enum class BufferRole : uint8_t { kInput, kOutput, kScratch };

// A range of one of the buffers.
struct BufferRange {
  BufferRole buffer = BufferRole::kOutput;
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
  friend bool operator==(const BufferRange&, const BufferRange&) = default;
};

struct SendOp {
  Rank to;
  BufferRange from;
};

// Without `operand`: `to` is what arrives. With it: `to` = op(what arrives, operand), element by
// element, so that the transfer can be received and combined in small pieces. `operand` has the
// size of `to` and is equal to it or apart from it.
struct ReceiveOp {
  Rank from;
  BufferRange to;
  std::optional<BufferRange> operand;
};

// Sets `to` to op(first, second), or to a copy of `first`. Sizes are equal.
struct LocalOp {
  BufferRange to;
  BufferRange first;
  std::optional<BufferRange> second;
};

// What a rank does before it waits for everything again.
struct AlgorithmStep {
  std::vector<SendOp> sends;
  std::vector<ReceiveOp> receives;
  std::vector<LocalOp> locals;
};

// What one rank does in one collective.
struct TransferSchedule {
  std::vector<AlgorithmStep> steps;
  int64_t scratch_bytes = 0;  // of kScratch
};

// A block of a buffer.
struct ByteRange {
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

inline BufferRange RangeIn(BufferRole buffer, ByteRange range) {
  return {buffer, range.offset_bytes, range.size_bytes};
}
// REQUIRES: one block per rank.
inline const ByteRange& BlockOf(absl::Span<const ByteRange> blocks, Rank rank) {
  return blocks[static_cast<size_t>(ToInt(rank))];
}
// The range from the start of the first to the end of the last of adjacent ranges. REQUIRES: not
// empty.
ByteRange Hull(absl::Span<const ByteRange> adjacent);

// `parts` adjacent ranges over `size_bytes`, multiples of `element_bytes`, that differ by at most
// one element; the first ones are larger. REQUIRES: size_bytes is a multiple of element_bytes.
std::vector<ByteRange> SplitEvenly(int64_t size_bytes, int32_t parts, int64_t element_bytes);

// Adjacent ranges of the given sizes.
std::vector<ByteRange> RangesOf(absl::Span<const int64_t> sizes_bytes);

// These build schedules. Transfers and copies of zero bytes are left out, on both sides.
void AddSend(AlgorithmStep& step, Rank to, BufferRange from);
void AddReceive(AlgorithmStep& step, Rank from, BufferRange to,
                std::optional<BufferRange> operand = std::nullopt);
void AddLocal(AlgorithmStep& step, BufferRange to, BufferRange first,
              std::optional<BufferRange> second = std::nullopt);
// Appends a step, unless nothing happens in it.
void AddStep(TransferSchedule& schedule, AlgorithmStep step);

// `rank` modulo `world_size`, also for negative numbers.
inline Rank Wrapped(int32_t rank, int32_t world_size) {
  return Rank{((rank % world_size) + world_size) % world_size};
}

}  // namespace coordd
