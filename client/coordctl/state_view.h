// coordd's state as text for people. PURE
#pragma once

#include <cstdint>
#include <string>

#include "coordd/v1/admin.pb.h"

namespace coordd {

// "0.3 s", "12 s", "5 min", "2.1 h", "3.0 d".
std::string DurationText(double seconds);
// "17 B", "8.1 MiB".
std::string BytesText(double bytes);

// Everything about each job: phase, generation, ranks by node with what each does, stalls,
// departures.
std::string StatusText(const v1::ServerState& state);
// One line for each job.
std::string JobsText(const v1::ServerState& state);
// The same as a JSON array.
std::string JobsJson(const v1::ServerState& state);

}  // namespace coordd
