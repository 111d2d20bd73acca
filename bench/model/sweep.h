// Which way is the fastest, for all that was asked.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/model/network.h"
#include "common/protocol/types.h"

namespace coordd::model {

struct Sweep {
  Network network;
  int32_t rack_nodes = 0;  // of each rack, where there are more nodes; 0: there are no racks
  bool labelled = false;   // whether ranks know their racks
  std::vector<CollectiveKind> kinds;
  std::vector<int32_t> nodes;
  std::vector<int64_t> bytes;
};

// Reads "allreduce,broadcast". INVALID_ARGUMENT: which word is none.
absl::StatusOr<std::vector<CollectiveKind>> KindsFrom(const std::vector<std::string>& words);

// Of one collective: {op, nodes, racks, bytes, us: {way: microseconds}, best, chosen, chosen_us,
// slower}: how many times as long as the best the table's choice takes.
absl::StatusOr<nlohmann::json> Cell(const Sweep& sweep, CollectiveKind kind, int32_t nodes,
                                    int64_t bytes);

}  // namespace coordd::model
