#include "worker/protocol/tensor_traits.h"

namespace coordd {

bool NeedsEverybody(const TensorSpec& spec) {
  // What a device has been told to do counts as complete before it is done.
  if (HasPayload(spec.kind) && spec.memory != MemoryKind::kHost) return false;
  switch (spec.kind) {
    case CollectiveKind::kAllreduce:
      return SizeBytes(spec) > 0;
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
      return true;
    default:
      // Where the sizes are exchanged first.
      return FirstDimensionMayDiffer(spec.kind) && !HasRoot(spec.kind);
  }
}

bool OutlivesGeneration(const TensorSpec& spec) {
  // Splits, roots, and who sends to whom, are about ranks that may be others now. (The new root of
  // a broadcast could have what the old one has half overwritten.) So is what a set has agreed on.
  return !HasSplits(spec.kind) && !HasRoot(spec.kind) && !IsPairwise(spec.kind) &&
         ToInt(spec.process_set) == 0;
}

}  // namespace coordd
