// `coordd-worker allreduce`: a loop of allreduces, for tests, demonstrations and fault injection.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/api/worker.h"

namespace coordd {

struct AllreduceLoopOptions {
  int64_t elements = 1 << 20;  // float32, of each tensor
  int64_t tensors = 1;         // per iteration, in flight together
  int64_t iterations = 100;    // 0: until stopped
  absl::Duration interval;     // pause between two iterations
};

struct AllreduceLoopResult {
  int64_t iterations = 0;  // completed
  int64_t wrong = 0;       // tensors with a wrong element
  absl::Status status;     // the first error
  double seconds = 0;
};

// Runs allreduces in which every rank gives rank + 1 and checks the first and last element of the
// sum. Ends early when `*stop` becomes true; ranks that end early make the others fail.
AllreduceLoopResult RunAllreduceLoop(Worker& worker, const AllreduceLoopOptions& options,
                                     Clock& clock, const std::atomic<bool>& stop);

}  // namespace coordd
