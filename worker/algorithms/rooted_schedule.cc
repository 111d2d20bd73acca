#include "worker/algorithms/rooted_schedule.h"

#include <utility>

namespace coordd {

Schedule BinomialReduce(Rank self, int32_t world_size, Rank root, int64_t size_bytes) {
  // Counted from the root, the children of v are v plus each power of two below its lowest bit;
  // each of them is combined in, the nearest first, and the sum goes to v without that bit.
  const int32_t v = ToInt(Wrapped(ToInt(self) - ToInt(root), world_size));
  auto rank_of = [&](int32_t index) { return Wrapped(index + ToInt(root), world_size); };
  const Slice partial{v == 0 ? BufferRole::kOutput : BufferRole::kScratch, 0, size_bytes};
  Slice combined{BufferRole::kInput, 0, size_bytes};
  Schedule schedule;
  for (int32_t distance = 1; distance < world_size; distance *= 2) {
    Step step;
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

Schedule ScatterGatherReduce(Rank self, Rank root, absl::Span<const ByteRange> blocks) {
  const int32_t size = static_cast<int32_t>(blocks.size());
  auto block_of = [&](Rank rank) { return blocks[static_cast<size_t>(ToInt(rank))]; };
  const Slice own = SliceOf(BufferRole::kInput, block_of(self));
  Slice combined = SliceOf(BufferRole::kOutput, block_of(self));
  Schedule schedule;
  if (self != root) {
    combined = {BufferRole::kScratch, 0, own.size_bytes};
    schedule.scratch_bytes = own.size_bytes;
  }
  for (int32_t s = 1; s < size; ++s) {
    const Rank to = Wrapped(ToInt(self) + s, size);
    Step step;
    AddSend(step, to, SliceOf(BufferRole::kInput, block_of(to)));
    AddReceive(step, Wrapped(ToInt(self) - s, size), combined, s == 1 ? own : combined);
    AddStep(schedule, std::move(step));
  }
  Step gather;
  for (int32_t s = 1; s < size; ++s) {
    const Rank from = Wrapped(ToInt(root) + s, size);
    if (self == root) AddReceive(gather, from, SliceOf(BufferRole::kOutput, block_of(from)));
    if (self == from) AddSend(gather, root, combined);
  }
  AddStep(schedule, std::move(gather));
  return schedule;
}

Schedule DirectGather(Rank self, Rank root, int64_t own_bytes, absl::Span<const ByteRange> blocks) {
  const Slice own{BufferRole::kInput, 0, own_bytes};
  Schedule schedule;
  Step step;
  if (self != root) {
    AddSend(step, root, own);
  } else {
    const int32_t size = static_cast<int32_t>(blocks.size());
    // Each rank's successor first, so that not all roots of a job begin with rank 0.
    for (int32_t s = 1; s < size; ++s) {
      const Rank from = Wrapped(ToInt(root) + s, size);
      AddReceive(step, from,
                 SliceOf(BufferRole::kOutput, blocks[static_cast<size_t>(ToInt(from))]));
    }
    AddLocal(step, SliceOf(BufferRole::kOutput, blocks[static_cast<size_t>(ToInt(root))]), own);
  }
  AddStep(schedule, std::move(step));
  return schedule;
}

}  // namespace coordd
