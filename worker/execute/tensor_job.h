// A submitted tensor on its way through the worker's threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/execute/work.h"

namespace coordd {

// Handed from thread to thread: caller, control, executor, completion. The spec is the Work's.
struct TensorJob {
  std::shared_ptr<Work> work;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // nullptr: the runtime allocates
  int64_t output_capacity_bytes = 0;
  std::vector<int64_t> splits;         // alltoall: rows for each rank, already filled in
  int32_t device = -1;                 // of both buffers, when the spec's memory is a device's
  uintptr_t stream = 0;                // of the caller, behind which the input is ready
  std::shared_ptr<DeviceEvent> ready;  // recorded there when it was submitted
  // NCCL may read and write the buffers where they are; else they are in host memory by now, or
  // will be.
  bool direct = false;
  absl::Time deadline;
  Generation generation;  // for which it was submitted
  // This rank has joined and has not submitted it: it has no buffers, contributes the operator's
  // identity or no rows, and drops the result. Its Work is nobody's.
  bool absent = false;

  // Set while executing: an error of this tensor alone, in a batch that went well.
  absl::Status status;
  WorkResult result;

  const TensorSpec& spec() const { return work->spec(); }
  const SharedSpec& shared_spec() const { return work->shared_spec(); }
};

}  // namespace coordd
