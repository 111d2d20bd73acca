// Where the metrics of a node's workers are together: at a relay.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace coordd {

// The path at which a relay serves them. A worker's own are at /metrics.
inline constexpr char kNodeMetricsPath[] = "/node";

// Join.metrics_address: HOST:PORT of a worker's own, or with that path behind it where its relay
// has them.
struct MetricsPlace {
  std::string address;
  bool of_node = false;
};
inline MetricsPlace MetricsPlaceOf(absl::string_view metrics_address) {
  const bool of_node = absl::ConsumeSuffix(&metrics_address, kNodeMetricsPath);
  return {std::string(metrics_address), of_node};
}

}  // namespace coordd
