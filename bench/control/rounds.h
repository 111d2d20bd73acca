// How long a round through coordd takes beside a round through a server that does nothing else.
// (io)
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/control/messages.h"

namespace coordd::bench {

struct RoundOptions {
  JobShape shape;
  int32_t channels = 1;
  int32_t rounds = 200;
  int32_t tensors = 64;  // that each rank reports in a round
  std::string tls = {};  // between the job and coordd: as Crowd::Options; the yardstick has none
};

// Every rank reports tensors that coordd knows, and has their plan. Blocks of such rounds take
// turns with blocks of rounds of 64 bytes through the yardstick (bench/control/echo_server.h), with
// as many sessions and channels.
absl::StatusOr<nlohmann::json> MeasureRepeated(const RoundOptions& options);

// The same for several numbers of nodes, and how both grow with them. `channels_max` 0: one for
// each node.
absl::StatusOr<nlohmann::json> MeasureGrowth(const RoundOptions& options, int32_t channels_max,
                                             const std::vector<int32_t>& nodes);

// From the last rank's report of a tensor that is new to the last rank's plan.
absl::StatusOr<nlohmann::json> MeasureFirstSight(const RoundOptions& options);

}  // namespace coordd::bench
