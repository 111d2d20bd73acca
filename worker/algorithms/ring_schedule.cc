#include "worker/algorithms/ring_schedule.h"

#include <utility>

#include "common/base/check.h"

namespace coordd {

void AppendRingReduceScatter(Rank self, absl::Span<const ByteRange> blocks,
                             TransferSchedule& schedule) {
  const int32_t size = static_cast<int32_t>(blocks.size());
  const int32_t rank = ToInt(self);
  COORDD_CHECK(size > 1);
  for (int32_t s = 0; s < size - 1; ++s) {
    // Block b starts at rank b + 1 and arrives complete at rank b.
    const ByteRange sent = BlockOf(blocks, Wrapped(rank - s - 1, size));
    const ByteRange received = BlockOf(blocks, Wrapped(rank - s - 2, size));
    AlgorithmStep step;
    AddSend(step, Wrapped(rank + 1, size),
            RangeIn(s == 0 ? BufferRole::kInput : BufferRole::kOutput, sent));
    AddReceive(step, Wrapped(rank - 1, size), RangeIn(BufferRole::kOutput, received),
               RangeIn(BufferRole::kInput, received));
    AddStep(schedule, std::move(step));
  }
}

void AppendRingAllgather(Rank self, absl::Span<const ByteRange> blocks, BufferRange own,
                         TransferSchedule& schedule) {
  const int32_t size = static_cast<int32_t>(blocks.size());
  const int32_t rank = ToInt(self);
  for (int32_t s = 0; s < size - 1; ++s) {
    const ByteRange sent = BlockOf(blocks, Wrapped(rank - s, size));
    const ByteRange received = BlockOf(blocks, Wrapped(rank - s - 1, size));
    AlgorithmStep step;
    AddSend(step, Wrapped(rank + 1, size), s == 0 ? own : RangeIn(BufferRole::kOutput, sent));
    AddReceive(step, Wrapped(rank - 1, size), RangeIn(BufferRole::kOutput, received));
    AddStep(schedule, std::move(step));
  }
}

TransferSchedule RingAllreduce(Rank self, int32_t world_size, int64_t size_bytes,
                               int64_t element_bytes) {
  const std::vector<ByteRange> blocks = SplitEvenly(size_bytes, world_size, element_bytes);
  TransferSchedule schedule;
  AppendRingReduceScatter(self, blocks, schedule);
  AppendRingAllgather(self, blocks, RangeIn(BufferRole::kOutput, BlockOf(blocks, self)), schedule);
  return schedule;
}

TransferSchedule RingAllgather(Rank self, absl::Span<const ByteRange> blocks) {
  const ByteRange own = BlockOf(blocks, self);
  const BufferRange input{BufferRole::kInput, 0, own.size_bytes};
  TransferSchedule schedule;
  AppendRingAllgather(self, blocks, input, schedule);
  AlgorithmStep copy;
  AddLocal(copy, RangeIn(BufferRole::kOutput, own), input);
  AddStep(schedule, std::move(copy));
  return schedule;
}

}  // namespace coordd
