#include "worker/algorithms/recursive_schedule.h"

#include <bit>
#include <utility>

#include "common/base/check.h"

namespace coordd {
namespace {

// The power-of-two core in the middle of a fold.
struct Folding {
  int32_t core_size;  // q
  int32_t folded;     // p - q pairs at the front
  bool sits_out;      // this rank hands its data to its odd neighbour
  int32_t core_rank;  // this rank's index in the core; when it sits out, its neighbour's

  Rank RankOf(int32_t core_index) const {
    return Rank{core_index < folded ? 2 * core_index + 1 : core_index + folded};
  }
};

Folding FoldingOf(Rank self, int32_t world_size) {
  const int32_t rank = ToInt(self);
  Folding folding;
  folding.core_size = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(world_size)));
  folding.folded = world_size - folding.core_size;
  const bool in_pair = rank < 2 * folding.folded;
  folding.sits_out = in_pair && rank % 2 == 0;
  folding.core_rank = in_pair ? rank / 2 : rank - folding.folded;
  return folding;
}

// Before the core. Returns where this rank's operand is afterwards.
BufferRole AppendFold(Rank self, const Folding& folding, ByteRange all,
                      TransferSchedule& schedule) {
  const int32_t rank = ToInt(self);
  if (rank >= 2 * folding.folded) return BufferRole::kInput;
  AlgorithmStep step;
  if (folding.sits_out) {
    AddSend(step, Rank{rank + 1}, RangeIn(BufferRole::kInput, all));
  } else {
    AddReceive(step, Rank{rank - 1}, RangeIn(BufferRole::kOutput, all),
               RangeIn(BufferRole::kInput, all));
  }
  AddStep(schedule, std::move(step));
  return BufferRole::kOutput;
}

// After the core.
void AppendUnfold(Rank self, const Folding& folding, ByteRange all, TransferSchedule& schedule) {
  const int32_t rank = ToInt(self);
  if (rank >= 2 * folding.folded) return;
  AlgorithmStep step;
  if (folding.sits_out) {
    AddReceive(step, Rank{rank + 1}, RangeIn(BufferRole::kOutput, all));
  } else {
    AddSend(step, Rank{rank - 1}, RangeIn(BufferRole::kOutput, all));
  }
  AddStep(schedule, std::move(step));
}

void AppendDoublingCore(const Folding& folding, BufferRole operand, ByteRange all,
                        TransferSchedule& schedule) {
  const BufferRange scratch{BufferRole::kScratch, 0, all.size_bytes};
  const BufferRange output = RangeIn(BufferRole::kOutput, all);
  for (int32_t distance = 1; distance < folding.core_size; distance *= 2) {
    const int32_t partner = folding.core_rank ^ distance;
    const BufferRange own = RangeIn(operand, all);
    AlgorithmStep step;
    AddSend(step, folding.RankOf(partner), own);
    AddReceive(step, folding.RankOf(partner), scratch);
    // Both partners combine in the same order.
    if (partner < folding.core_rank) {
      AddLocal(step, output, scratch, own);
    } else {
      AddLocal(step, output, own, scratch);
    }
    AddStep(schedule, std::move(step));
    operand = BufferRole::kOutput;
  }
}

void AppendHalvingDoublingCore(const Folding& folding, BufferRole operand,
                               absl::Span<const ByteRange> blocks, TransferSchedule& schedule) {
  // Invariant: this rank is responsible for `count` blocks from `first`, a multiple of count.
  int32_t first = 0;
  int32_t count = folding.core_size;
  while (count > 1) {
    count /= 2;
    const int32_t partner = folding.core_rank ^ count;
    const bool upper = (folding.core_rank & count) != 0;
    const int32_t kept = upper ? first + count : first;
    const int32_t given = upper ? first : first + count;
    const ByteRange kept_bytes = Hull(blocks.subspan(kept, count));
    AlgorithmStep step;
    AddSend(step, folding.RankOf(partner), RangeIn(operand, Hull(blocks.subspan(given, count))));
    AddReceive(step, folding.RankOf(partner), RangeIn(BufferRole::kOutput, kept_bytes),
               RangeIn(operand, kept_bytes));
    AddStep(schedule, std::move(step));
    first = kept;
    operand = BufferRole::kOutput;
  }
  for (; count < folding.core_size; count *= 2) {
    const int32_t partner = folding.core_rank ^ count;
    const int32_t theirs = first ^ count;
    AlgorithmStep step;
    AddSend(step, folding.RankOf(partner),
            RangeIn(BufferRole::kOutput, Hull(blocks.subspan(first, count))));
    AddReceive(step, folding.RankOf(partner),
               RangeIn(BufferRole::kOutput, Hull(blocks.subspan(theirs, count))));
    AddStep(schedule, std::move(step));
    first &= ~count;
  }
}

}  // namespace

TransferSchedule RecursiveDoublingAllreduce(Rank self, int32_t world_size, int64_t size_bytes,
                                            int64_t element_bytes) {
  COORDD_CHECK(world_size > 1 && size_bytes % element_bytes == 0);
  const Folding folding = FoldingOf(self, world_size);
  const ByteRange all{0, size_bytes};
  TransferSchedule schedule;
  schedule.scratch_bytes = size_bytes;
  const BufferRole operand = AppendFold(self, folding, all, schedule);
  if (!folding.sits_out) AppendDoublingCore(folding, operand, all, schedule);
  AppendUnfold(self, folding, all, schedule);
  return schedule;
}

TransferSchedule HalvingDoublingAllreduce(Rank self, int32_t world_size, int64_t size_bytes,
                                          int64_t element_bytes) {
  COORDD_CHECK(world_size > 1);
  const Folding folding = FoldingOf(self, world_size);
  const ByteRange all{0, size_bytes};
  TransferSchedule schedule;
  const BufferRole operand = AppendFold(self, folding, all, schedule);
  if (!folding.sits_out) {
    AppendHalvingDoublingCore(folding, operand,
                              SplitEvenly(size_bytes, folding.core_size, element_bytes), schedule);
  }
  AppendUnfold(self, folding, all, schedule);
  return schedule;
}

}  // namespace coordd
