// What the death of a process costs a running job. (io)
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace coordd::bench {

struct RecoveryOptions {
  int32_t workers = 4;
  int32_t kills = 10;
  int64_t elements = 1 << 16;                  // floats of a step's reduction
  bool coordd_dies = false;                    // instead of a worker
  absl::Duration interval = absl::Seconds(1);  // between kills of coordd
};

// Starts real processes (rank.cc) that reduce in a loop with on_failure "raise", and kills with
// SIGKILL. A worker: each time one of a fresh job, in turn; milliseconds to the last survivor's
// first result in the next generation. coordd: again and again under one job, on state in SQLite;
// milliseconds until every rank has a result under a name that nobody had seen, agreed upon after
// coordd was ready again, and until it was ready.
absl::StatusOr<nlohmann::json> MeasureRecovery(const RecoveryOptions& options);

}  // namespace coordd::bench
