// coordd's state as text for people. PURE
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordd/v1/admin.pb.h"

namespace coordd {

// "0.3 s", "12 s", "5 min", "2.1 h", "3.0 d".
std::string DurationText(double seconds);
// "17 B", "8.1 MiB".
std::string BytesText(double bytes);

// "rank 2 (host node3, pid 4711) was lost: its connection closed without a goodbye".
std::string DepartureText(const v1::Departure& departure);
// "stalled for 12 s: grad/17 (process set 3); ranks in: 0, 1; ranks missing: 2, 3".
std::string StallText(const v1::StalledTensor& stall);

// The stalls of all jobs, with "; " between them; empty when there is none.
std::string StallsText(const v1::ServerState& state);

// Everything about each job: phase, generation, ranks by node with what each does, stalls,
// departures.
std::string StatusText(const v1::ServerState& state);
// The GPUs of a job and how the tensors on them travel, ranks that say the same together; empty:
// there are none.
std::string DevicesText(const v1::JobState& job);
// One line for each job.
std::string JobsText(const v1::ServerState& state);
// All jobs as a JSON array.
std::string JobsJson(const v1::ServerState& state);

}  // namespace coordd
