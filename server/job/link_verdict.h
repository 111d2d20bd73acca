// Whom of a generation's members coordd parts with when some hear nothing from each other. PURE
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "server/generation/generation_state.h"
#include "server/job/blame.h"
#include "server/job/job_workers.h"

namespace coordd {

struct Eviction {
  SessionId session;
  std::string detail;  // how its departure goes on after "rank 2 (host node3, pid 4711) "
};

// As few of them as possible, so that the others do not fail together again. Both ends of each link
// are marked at `now`: who is one again soon is parted with first. REQUIRES: all ranks that are
// blamed or have blamed are in.
std::vector<Eviction> PartWith(const Blame& blame, const GenerationState& state,
                               JobWorkers& workers, absl::Time now);

}  // namespace coordd
