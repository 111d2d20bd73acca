// What coordd has announced is in its state, whenever it is killed. (io)
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "bench/recovery/recovery.h"

namespace coordd::bench {

// Jobs of one worker each join a coordd on SQLite, one after the other, which is killed with
// SIGKILL at some moment while it stores their generations. Each generation that a worker has heard
// of must be in the state. `options.planted` times one of these records is removed before the state
// is looked at, which must be noticed.
absl::StatusOr<nlohmann::json> MeasureWrites(const RecoveryOptions& options);

}  // namespace coordd::bench
