#include "worker/algorithms/pairwise_schedule.h"

#include <algorithm>
#include <utility>

namespace coordd {
namespace {

// Of an alltoall, whose blocks need not wait for each other: enough that one that is late holds up
// no other, few enough that a transport's queues stay short.
constexpr int32_t kPeersAtOnce = 8;

}  // namespace

TransferSchedule PairwiseAlltoall(Rank self, absl::Span<const ByteRange> input_blocks,
                                  absl::Span<const ByteRange> output_blocks) {
  const int32_t size = static_cast<int32_t>(input_blocks.size());
  TransferSchedule schedule;
  for (int32_t first = 1; first < size; first += kPeersAtOnce) {
    AlgorithmStep step;
    for (int32_t s = first; s < std::min(size, first + kPeersAtOnce); ++s) {
      const Rank to = Wrapped(ToInt(self) + s, size);
      const Rank from = Wrapped(ToInt(self) - s, size);
      AddSend(step, to, RangeIn(BufferRole::kInput, BlockOf(input_blocks, to)));
      AddReceive(step, from, RangeIn(BufferRole::kOutput, BlockOf(output_blocks, from)));
    }
    AddStep(schedule, std::move(step));
  }
  AlgorithmStep copy;
  AddLocal(copy, RangeIn(BufferRole::kOutput, BlockOf(output_blocks, self)),
           RangeIn(BufferRole::kInput, BlockOf(input_blocks, self)));
  AddStep(schedule, std::move(copy));
  return schedule;
}

TransferSchedule PairwiseReduceScatter(Rank self, absl::Span<const ByteRange> blocks) {
  const int32_t size = static_cast<int32_t>(blocks.size());
  const BufferRange own = RangeIn(BufferRole::kInput, BlockOf(blocks, self));
  const BufferRange result{BufferRole::kOutput, 0, own.size_bytes};
  TransferSchedule schedule;
  for (int32_t s = 1; s < size; ++s) {
    const Rank to = Wrapped(ToInt(self) + s, size);
    AlgorithmStep step;
    AddSend(step, to, RangeIn(BufferRole::kInput, BlockOf(blocks, to)));
    AddReceive(step, Wrapped(ToInt(self) - s, size), result, s == 1 ? own : result);
    AddStep(schedule, std::move(step));
  }
  if (size == 1) {
    AlgorithmStep copy;
    AddLocal(copy, result, own);
    AddStep(schedule, std::move(copy));
  }
  return schedule;
}

}  // namespace coordd
