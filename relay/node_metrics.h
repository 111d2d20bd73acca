// The metrics of a node's workers as those of one target. PURE.
#pragma once

#include <string>
#include <vector>

namespace coordd {

// `texts`: what workers of one node answer at /metrics, in Prometheus's text format. Counters and
// histograms are added up. So are gauges, but that those by which a rank is found stay each rank's,
// with the label `rank` (its lags, its memory, its GPU), and those that are the same for all, or a
// limit, are the largest. `coordd_worker_rank` becomes `coordd_worker_ranks`, how many there are.
// What is not in the format is left out.
std::string NodeMetrics(const std::vector<std::string>& texts);

}  // namespace coordd
