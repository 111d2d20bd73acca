// What a heartbeat tells of a rank's progress. PURE
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "coordd/v1/session.pb.h"
#include "worker/protocol/pending_tensors.h"
#include "worker/protocol/worker_generation.h"

namespace coordd {

struct WorkTotals {  // of all generations
  int64_t collectives = 0;
  int64_t bytes = 0;
  int64_t batches = 0;
};

// Takes the marks of schedules that have come since the last one.
v1::Heartbeat HeartbeatOf(const PendingTensors& pending, WorkerGeneration& generation,
                          const WorkTotals& totals, absl::Time now);

}  // namespace coordd
