// coordd's decisions alone: no gRPC, no thread, no serialisation.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"

namespace coordd::bench {

struct StateOptions {
  std::vector<int32_t> ranks = {64};
  int32_t ranks_per_node = 8;
  int32_t rounds = 5;
  int32_t tensors = 64;  // that each rank reports in a round
};

// For each number of ranks: what it takes to join them, and what a round takes in which all of them
// report tensors and have a plan of these; and how that grows. INTERNAL: no membership or no plan
// came.
absl::StatusOr<nlohmann::json> MeasureState(const StateOptions& options);

}  // namespace coordd::bench
