// The relay of this node: its workers speak to coordd through it, as one session. (io)
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/coordrun/child_process.h"
#include "client/coordrun/run_options.h"
#include "common/clock.h"
#include "common/environment.h"

namespace coordd {

// From so many ranks on, the nodes of a job have relays, unless --node-sessions says otherwise:
// there a round takes 10 ms of coordd's CPU without them, and a sixth of it with them
// (bench/results.md). Below, a process more on each node and a longer way are not worth it.
inline constexpr int32_t kRelaysFrom = 512;

// Whether a node with `local` of the `np` workers of a run gets one. REQUIRES: options are valid.
bool WantsRelay(const RunOptions& options, int32_t np, int32_t local);

// For the launcher's agent on a node, or its own node.
struct RelayProcess {
  ChildProcess process;
  std::string address;  // COORDD_NODE_SESSION of the workers
};

// Takes workers when it returns, at a socket in `directory`. `environment`: a worker's, which says
// where coordd is. UNAVAILABLE, NOT_FOUND, DEADLINE_EXCEEDED: why not, one sentence; the workers
// then speak to coordd themselves.
absl::StatusOr<RelayProcess> StartRelay(const std::string& directory,
                                        const Environment& environment, Clock& clock);

}  // namespace coordd
