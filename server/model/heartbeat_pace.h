// How often the members of a generation report.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/protocol/heartbeat_pace.h"
#include "server/model/server_options.h"

namespace coordd {

// PURE. Never so seldom that a lease has fewer than two and a half reports, or that who reports
// late looks stalled.
inline absl::Duration HeartbeatInterval(const ServerOptions& options, int32_t members) {
  const absl::Duration longest = std::min(options.lease, options.stall_warning) * 2 / 5;
  return HeartbeatInterval(options.heartbeat_interval, longest, members);
}

}  // namespace coordd
