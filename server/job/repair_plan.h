// What survivors do with the batches that their generation's end has interrupted.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

struct SurvivorReport {
  int32_t rank = 0;  // in the generation that is over, for messages
  const v1::RecoveryReport* report = nullptr;
};

// Per lane the position up to which every survivor gives its program the results that it holds;
// everything behind it is submitted anew and reduced over the next generation. Lanes without an
// entry: 0.
//
// A rank completes a batch only when all members hold its result (docs/design/recovery.md, rule 1).
// So what some survivor has completed all others hold, and what nobody has completed no program has
// seen. INTERNAL: reports that contradict this, with both ranks named.
absl::StatusOr<std::map<LaneId, int64_t>> PlanRepair(absl::Span<const SurvivorReport> survivors);

}  // namespace coordd
