// From the start of real processes to the end of their first barrier. (io)
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"

namespace coordd::bench {

struct ProcessOptions {
  int32_t ranks = 2;
  int32_t rounds = 7;
};

// Starts that many programs (bench/control/rendezvous_rank.cc), which join a job and have a
// barrier: under a coordd that is there already, and under one that is started with them, in turn.
// Milliseconds, medians.
absl::StatusOr<nlohmann::json> MeasureProcesses(const ProcessOptions& options);

}  // namespace coordd::bench
