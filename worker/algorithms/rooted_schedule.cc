#include "worker/algorithms/rooted_schedule.h"

#include <utility>

namespace coordd {

TransferSchedule BinomialReduce(Rank self, int32_t world_size, Rank root, int64_t size_bytes) {
  // Counted from the root, the children of v are v plus each power of two below its lowest bit;
  // each of them is combined in, the nearest first, and the sum goes to v without that bit.
  const int32_t v = ToInt(Wrapped(ToInt(self) - ToInt(root), world_size));
  auto rank_of = [&](int32_t index) { return Wrapped(index + ToInt(root), world_size); };
  const BufferRange partial{v == 0 ? BufferRole::kOutput : BufferRole::kScratch, 0, size_bytes};
  BufferRange combined{BufferRole::kInput, 0, size_bytes};
  TransferSchedule schedule;
  for (int32_t distance = 1; distance < world_size; distance *= 2) {
    AlgorithmStep step;
    if ((v & distance) != 0) {
      AddSend(step, rank_of(v - distance), combined);
      AddStep(schedule, std::move(step));
      break;
    }
    if (v + distance >= world_size) continue;
    AddReceive(step, rank_of(v + distance), partial, combined);
    combined = partial;
    AddStep(schedule, std::move(step));
    if (v != 0) schedule.scratch_bytes = size_bytes;
  }
  return schedule;
}

TransferSchedule ScatterGatherReduce(Rank self, Rank root, absl::Span<const ByteRange> blocks) {
  const int32_t size = static_cast<int32_t>(blocks.size());
  auto block_of = [&](Rank rank) { return blocks[static_cast<size_t>(ToInt(rank))]; };
  const BufferRange own = RangeIn(BufferRole::kInput, block_of(self));
  BufferRange combined = RangeIn(BufferRole::kOutput, block_of(self));
  TransferSchedule schedule;
  if (self != root) {
    combined = {BufferRole::kScratch, 0, own.size_bytes};
    schedule.scratch_bytes = own.size_bytes;
  }
  for (int32_t s = 1; s < size; ++s) {
    const Rank to = Wrapped(ToInt(self) + s, size);
    AlgorithmStep step;
    AddSend(step, to, RangeIn(BufferRole::kInput, block_of(to)));
    AddReceive(step, Wrapped(ToInt(self) - s, size), combined, s == 1 ? own : combined);
    AddStep(schedule, std::move(step));
  }
  AlgorithmStep gather;
  for (int32_t s = 1; s < size; ++s) {
    const Rank from = Wrapped(ToInt(root) + s, size);
    if (self == root) AddReceive(gather, from, RangeIn(BufferRole::kOutput, block_of(from)));
    if (self == from) AddSend(gather, root, combined);
  }
  AddStep(schedule, std::move(gather));
  return schedule;
}

TransferSchedule DirectGather(Rank self, Rank root, int64_t own_bytes,
                              absl::Span<const ByteRange> blocks) {
  const BufferRange own{BufferRole::kInput, 0, own_bytes};
  TransferSchedule schedule;
  AlgorithmStep step;
  if (self != root) {
    AddSend(step, root, own);
  } else {
    const int32_t size = static_cast<int32_t>(blocks.size());
    // Each rank's successor first, so that not all roots of a job begin with rank 0.
    for (int32_t s = 1; s < size; ++s) {
      const Rank from = Wrapped(ToInt(root) + s, size);
      AddReceive(step, from,
                 RangeIn(BufferRole::kOutput, blocks[static_cast<size_t>(ToInt(from))]));
    }
    AddLocal(step, RangeIn(BufferRole::kOutput, blocks[static_cast<size_t>(ToInt(root))]), own);
  }
  AddStep(schedule, std::move(step));
  return schedule;
}

}  // namespace coordd
