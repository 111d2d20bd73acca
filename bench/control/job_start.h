// What it takes until a job runs, and what it takes while it does nothing. (io)
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/control/messages.h"

namespace coordd::bench {

struct StartOptions {
  JobShape shape;
  int32_t channels = 1;
  int32_t groups = 0;                       // MeasureRendezvous: that each rank then makes
  absl::Duration idle = absl::Seconds(10);  // MeasureIdle: how long it watches
  std::string tls = {};                     // MeasureRendezvous: as Crowd::Options
};

// All workers of a job join at once.
absl::StatusOr<nlohmann::json> MeasureRendezvous(const StartOptions& options);

// A job that has joined and sends heartbeats as workers do. Memory beside that of as
// many streams to the yardstick.
absl::StatusOr<nlohmann::json> MeasureIdle(const StartOptions& options);

}  // namespace coordd::bench
