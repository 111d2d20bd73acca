#include "worker/algorithms/ring_schedule.h"

#include <utility>

#include "common/base/check.h"

namespace coordd {

namespace {

const ByteRange& BlockAt(absl::Span<const ByteRange> blocks, int32_t position) {
  return BlockOf(blocks, Wrapped(position, static_cast<int32_t>(blocks.size())));
}

}  // namespace

RingPlace PlaceInRing(Rank self, int32_t world_size) {
  const int32_t rank = ToInt(self);
  return {rank, Wrapped(rank - 1, world_size), Wrapped(rank + 1, world_size)};
}

void AppendRingReduceScatter(const RingPlace& self, absl::Span<const ByteRange> blocks,
                             BufferRole operands, TransferSchedule& schedule) {
  const int32_t size = static_cast<int32_t>(blocks.size());
  COORDD_CHECK(size > 1 && operands != BufferRole::kScratch);
  for (int32_t s = 0; s < size - 1; ++s) {
    // Block b starts at position b + 1 and arrives complete at position b.
    const ByteRange sent = BlockAt(blocks, self.position - s - 1);
    const ByteRange received = BlockAt(blocks, self.position - s - 2);
    AlgorithmStep step;
    AddSend(step, self.next, RangeIn(s == 0 ? operands : BufferRole::kOutput, sent));
    AddReceive(step, self.previous, RangeIn(BufferRole::kOutput, received),
               RangeIn(operands, received));
    AddStep(schedule, std::move(step));
  }
}

void AppendRingAllgather(const RingPlace& self, absl::Span<const ByteRange> blocks, BufferRange own,
                         TransferSchedule& schedule) {
  const int32_t size = static_cast<int32_t>(blocks.size());
  for (int32_t s = 0; s < size - 1; ++s) {
    const ByteRange sent = BlockAt(blocks, self.position - s);
    const ByteRange received = BlockAt(blocks, self.position - s - 1);
    AlgorithmStep step;
    AddSend(step, self.next, s == 0 ? own : RangeIn(BufferRole::kOutput, sent));
    AddReceive(step, self.previous, RangeIn(BufferRole::kOutput, received));
    AddStep(schedule, std::move(step));
  }
}

TransferSchedule RingAllreduce(Rank self, int32_t world_size, int64_t size_bytes,
                               int64_t element_bytes) {
  const std::vector<ByteRange> blocks = SplitEvenly(size_bytes, world_size, element_bytes);
  TransferSchedule schedule;
  const RingPlace place = PlaceInRing(self, world_size);
  AppendRingReduceScatter(place, blocks, BufferRole::kInput, schedule);
  AppendRingAllgather(place, blocks, RangeIn(BufferRole::kOutput, BlockOf(blocks, self)), schedule);
  return schedule;
}

TransferSchedule RingAllgather(Rank self, absl::Span<const ByteRange> blocks) {
  const ByteRange own = BlockOf(blocks, self);
  const BufferRange input{BufferRole::kInput, 0, own.size_bytes};
  TransferSchedule schedule;
  AppendRingAllgather(PlaceInRing(self, static_cast<int32_t>(blocks.size())), blocks, input,
                      schedule);
  AlgorithmStep copy;
  AddLocal(copy, RangeIn(BufferRole::kOutput, own), input);
  AddStep(schedule, std::move(copy));
  return schedule;
}

}  // namespace coordd
