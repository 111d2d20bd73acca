// Over what a job's ranks reach each other, as text for people. PURE
#pragma once

#include <string>

#include "coordd/v1/admin.pb.h"

namespace coordd {

// "mapped, tcp": in its node and between nodes; "mapped, tcp + ucx rdma"; "-": it has not told.
std::string EdgeText(const v1::WorkerState& worker);

// A line for edges in nodes and one for those between nodes, where there are any; with the ranks,
// where not all have the same.
std::string EdgesText(const v1::JobState& job);

}  // namespace coordd
