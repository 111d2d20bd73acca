#include "worker/algorithms/collective_schedule.h"

#include <utility>

#include "common/base/check.h"

namespace coordd {

ByteRange Hull(absl::Span<const ByteRange> adjacent) {
  COORDD_CHECK(!adjacent.empty());
  const ByteRange& last = adjacent.back();
  return {adjacent.front().offset_bytes,
          last.offset_bytes + last.size_bytes - adjacent.front().offset_bytes};
}

std::vector<ByteRange> SplitEvenly(int64_t size_bytes, int32_t parts, int64_t element_bytes) {
  COORDD_CHECK(parts > 0 && size_bytes % element_bytes == 0);
  const int64_t elements = size_bytes / element_bytes;
  std::vector<int64_t> sizes;
  sizes.reserve(static_cast<size_t>(parts));
  for (int32_t i = 0; i < parts; ++i)
    sizes.push_back((elements / parts + (i < elements % parts ? 1 : 0)) * element_bytes);
  return RangesOf(sizes);
}

std::vector<ByteRange> RangesOf(absl::Span<const int64_t> sizes_bytes) {
  std::vector<ByteRange> ranges;
  ranges.reserve(sizes_bytes.size());
  int64_t offset_bytes = 0;
  for (int64_t size_bytes : sizes_bytes) {
    ranges.push_back({offset_bytes, size_bytes});
    offset_bytes += size_bytes;
  }
  return ranges;
}

void AddSend(AlgorithmStep& step, Rank to, BufferRange from) {
  if (from.size_bytes > 0) step.sends.push_back({to, from});
}

void AddReceive(AlgorithmStep& step, Rank from, BufferRange to,
                std::optional<BufferRange> operand) {
  if (to.size_bytes > 0) step.receives.push_back({from, to, operand});
}

void AddLocal(AlgorithmStep& step, BufferRange to, BufferRange first,
              std::optional<BufferRange> second) {
  if (to.size_bytes > 0) step.locals.push_back({to, first, second});
}

void AddStep(TransferSchedule& schedule, AlgorithmStep step) {
  if (step.sends.empty() && step.receives.empty() && step.locals.empty()) return;
  schedule.steps.push_back(std::move(step));
}

}  // namespace coordd
