#include "server/generation/fusion_planner.h"

#include <bit>
#include <map>
#include <tuple>

namespace coordd {
namespace {

// Factors by their bits: a NaN has no place in an order of numbers.
using Key = std::tuple<CollectiveKind, DataType, ReduceOp, uint64_t, uint64_t, ProcessSetId,
                       int32_t, MemoryKind>;

Key KeyOf(const TensorSpec& spec) {
  return Key{spec.kind,
             spec.dtype,
             spec.op,
             std::bit_cast<uint64_t>(spec.prescale_factor),
             std::bit_cast<uint64_t>(spec.postscale_factor),
             spec.process_set,
             HasRoot(spec.kind) ? spec.root_rank : 0,
             spec.memory};
}

int64_t Aligned(int64_t bytes) {
  return (bytes + kFusionAlignmentBytes - 1) / kFusionAlignmentBytes * kFusionAlignmentBytes;
}

struct OpenBatch {
  size_t index = 0;
  int64_t bytes = 0;
};

}  // namespace

std::vector<std::vector<size_t>> PlanFusion(absl::Span<const FusionInput> ready,
                                            const FusionOptions& options) {
  std::vector<std::vector<size_t>> batches;
  std::map<Key, OpenBatch> open;
  for (size_t i = 0; i < ready.size(); ++i) {
    const TensorSpec& spec = *ready[i].spec;
    const int64_t bytes = Aligned(ready[i].size_bytes);
    const bool alone = spec.memory == MemoryKind::kHost && bytes >= options.alone_bytes;
    if (!CanFuse(spec.kind) || alone) {
      batches.push_back({i});
      continue;
    }
    const auto [it, is_new] = open.try_emplace(KeyOf(spec));
    OpenBatch& batch = it->second;
    const bool fits = !is_new && batch.bytes + bytes <= options.max_batch_bytes &&
                      static_cast<int64_t>(batches[batch.index].size()) < options.max_batch_tensors;
    if (!fits) {
      batch = OpenBatch{.index = batches.size(), .bytes = 0};
      batches.emplace_back();
    }
    batches[batch.index].push_back(i);
    batch.bytes += bytes;
  }
  return batches;
}

}  // namespace coordd
