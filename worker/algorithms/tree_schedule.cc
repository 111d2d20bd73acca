#include "worker/algorithms/tree_schedule.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace coordd {
namespace {

// Where ranks stand, counted from the root.
class FromRoot {
 public:
  FromRoot(int32_t world_size, Rank root, absl::Span<const Rank> order)
      : world_size_(world_size), order_(order), root_at_(PlaceOf(root)) {}

  int32_t IndexOf(Rank rank) const { return ToInt(Wrapped(PlaceOf(rank) - root_at_, world_size_)); }
  Rank At(int32_t index) const {
    const Rank place = Wrapped(index + root_at_, world_size_);
    return order_.empty() ? place : order_[static_cast<size_t>(ToInt(place))];
  }

 private:
  int32_t PlaceOf(Rank rank) const {
    if (order_.empty()) return ToInt(rank);
    return static_cast<int32_t>(std::find(order_.begin(), order_.end(), rank) - order_.begin());
  }

  const int32_t world_size_;
  const absl::Span<const Rank> order_;
  const int32_t root_at_;
};

// A rank, and those that follow it in its subtree, up to `end`.
struct Subtree {
  int32_t parent = -1, first = 0, end = 0;

  // What follows is cut into so many parts, as equal as can be, each of which begins with a child.
  Subtree Child(int32_t number, int32_t arity) const {
    const int64_t rest = end - first - 1;
    const auto begin_of = [&](int64_t part) {
      return first + 1 + static_cast<int32_t>(rest * part / arity);
    };
    return {first, begin_of(number), begin_of(number + 1)};
  }
};

Subtree SubtreeOf(int32_t index, int32_t world_size, int32_t arity) {
  if (arity == 1) return {index - 1, index, world_size};
  Subtree tree{-1, 0, world_size};
  while (tree.first != index) {
    int32_t number = 0;
    while (tree.Child(number, arity).end <= index) ++number;
    tree = tree.Child(number, arity);
  }
  return tree;
}

}  // namespace

TransferSchedule BinomialBroadcast(Rank self, int32_t world_size, Rank root, int64_t size_bytes,
                                   absl::Span<const Rank> order) {
  const BufferRange value{BufferRole::kOutput, 0, size_bytes};
  const FromRoot ranks(world_size, root, order);
  // Counted from the root, the parent of v is v without its lowest bit; its children are v plus
  // each power of two below that bit.
  const int32_t v = ranks.IndexOf(self);
  int32_t reach = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(world_size)));
  TransferSchedule schedule;
  if (v != 0) {
    reach = v & -v;
    AlgorithmStep step;
    AddReceive(step, ranks.At(v - reach), value);
    AddStep(schedule, std::move(step));
  }
  for (int32_t distance = reach / 2; distance > 0; distance /= 2) {
    if (v + distance >= world_size) continue;
    AlgorithmStep step;
    AddSend(step, ranks.At(v + distance), value);
    AddStep(schedule, std::move(step));
  }
  return schedule;
}

TransferSchedule ArityBroadcast(Rank self, int32_t world_size, Rank root, int32_t arity,
                                int64_t size_bytes, absl::Span<const Rank> order) {
  const BufferRange value{BufferRole::kOutput, 0, size_bytes};
  const FromRoot ranks(world_size, root, order);
  const Subtree tree = SubtreeOf(ranks.IndexOf(self), world_size, arity);
  TransferSchedule schedule;
  if (tree.parent >= 0) {
    AlgorithmStep step;
    AddReceive(step, ranks.At(tree.parent), value);
    AddStep(schedule, std::move(step));
  }
  AlgorithmStep step;
  for (int32_t number = 0; number < arity; ++number) {
    const Subtree child = tree.Child(number, arity);
    if (child.first < child.end) AddSend(step, ranks.At(child.first), value);
  }
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
