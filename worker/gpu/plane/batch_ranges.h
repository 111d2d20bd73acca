// Batches as a profiler of CUDA shows them. (io)
#pragma once

#include <optional>
#include <set>

#include "common/base/environment.h"
#include "worker/execute/batch_job.h"
#include "worker/gpu/cuda/nvtx.h"

namespace coordd {

// One thread at a time. A process set is named before its first range.
class BatchRanges {
 public:
  // To the profiler whose library the environment names, if it does.
  void Attach(const Environment& environment);
  // Whether a profiler is there.
  bool listened_to() const { return nvtx_ != nullptr; }
  // While the batch is being enqueued. Nothing where nobody listens.
  void Begin(const BatchJob& batch, std::optional<NvtxRange>& range);

 private:
  const Nvtx* nvtx_ = nullptr;
  std::set<ProcessSetId> named_;  // categories
};

}  // namespace coordd
