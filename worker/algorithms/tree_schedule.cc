#include "worker/algorithms/tree_schedule.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace coordd {

TransferSchedule BinomialBroadcast(Rank self, int32_t world_size, Rank root, int64_t size_bytes) {
  const BufferRange value{BufferRole::kOutput, 0, size_bytes};
  // Counted from the root, the parent of v is v without its lowest bit; its children are v plus
  // each power of two below that bit.
  const int32_t v = ToInt(Wrapped(ToInt(self) - ToInt(root), world_size));
  auto rank_of = [&](int32_t index) { return Wrapped(index + ToInt(root), world_size); };
  int32_t reach = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(world_size)));
  TransferSchedule schedule;
  if (v != 0) {
    reach = v & -v;
    AlgorithmStep step;
    AddReceive(step, rank_of(v - reach), value);
    AddStep(schedule, std::move(step));
  }
  for (int32_t distance = reach / 2; distance > 0; distance /= 2) {
    if (v + distance >= world_size) continue;
    AlgorithmStep step;
    AddSend(step, rank_of(v + distance), value);
    AddStep(schedule, std::move(step));
  }
  return schedule;
}

TransferSchedule ArityBroadcast(Rank self, int32_t world_size, Rank root, int32_t arity,
                                int64_t size_bytes) {
  const BufferRange value{BufferRole::kOutput, 0, size_bytes};
  // Counted from the root, level by level.
  const int32_t v = ToInt(Wrapped(ToInt(self) - ToInt(root), world_size));
  auto rank_of = [&](int32_t index) { return Wrapped(index + ToInt(root), world_size); };
  TransferSchedule schedule;
  if (v != 0) {
    AlgorithmStep step;
    AddReceive(step, rank_of((v - 1) / arity), value);
    AddStep(schedule, std::move(step));
  }
  AlgorithmStep step;
  const int64_t first = int64_t{v} * arity + 1;
  for (int64_t child = first; child < std::min<int64_t>(first + arity, world_size); ++child)
    AddSend(step, rank_of(static_cast<int32_t>(child)), value);
  AddStep(schedule, std::move(step));
  return schedule;
}

TransferSchedule DisseminationBarrier(Rank self, int32_t world_size) {
  const BufferRange nothing{BufferRole::kOutput, 0, 0};
  TransferSchedule schedule;
  for (int32_t distance = 1; distance < world_size; distance *= 2) {
    AlgorithmStep step;
    // Not AddSend and AddReceive: here the empty message is the point.
    step.sends.push_back({Wrapped(ToInt(self) + distance, world_size), nothing});
    step.receives.push_back({Wrapped(ToInt(self) - distance, world_size), nothing, std::nullopt});
    schedule.steps.push_back(std::move(step));
  }
  return schedule;
}

}  // namespace coordd
