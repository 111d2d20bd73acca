// What a state machine may use while it decides.
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "worker/protocol/worker_events.h"

namespace coordd {

// The time of a step or of a tick, and where its effects go, in order. Lives for one call of
// WorkerState and is never kept.
struct WorkerTurn {
  absl::Time now;
  std::vector<WorkerEffect>& out;
};

}  // namespace coordd
