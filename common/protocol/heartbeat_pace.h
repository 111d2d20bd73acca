// When the members of a job report, so that a large one costs coordd little while it idles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "common/protocol/types.h"

namespace coordd {

// PURE. In a job of more, two things are saved. A message costs most when it comes alone: threads
// are woken for it and find nothing in their caches. So neighbours in the order of ranks report at
// one moment, in groups of this size: cheaper, and never so many that a plan waits for them. And
// the groups follow each other in an interval that grows with the job.
inline constexpr int32_t kHeartbeatGroup = 64;
// Heartbeats a second of one job, as far as its interval may grow.
inline constexpr int32_t kHeartbeatsPerSecond = 128;

inline absl::Duration HeartbeatInterval(absl::Duration shortest, absl::Duration longest,
                                        int32_t members) {
  return std::max(shortest, std::min(longest, absl::Seconds(members) / kHeartbeatsPerSecond));
}

// From `now` by coordd's clock, when `rank` reports, to its next report: the next moment of its
// group, an eighth of the interval away at least, nine eighths at most. So who has got out of step
// is in step again.
inline absl::Duration UntilNextHeartbeat(absl::Duration interval, int32_t members, Rank rank,
                                         absl::Time now) {
  if (members <= kHeartbeatGroup) return interval;
  const int32_t groups = (members + kHeartbeatGroup - 1) / kHeartbeatGroup;
  const absl::Duration moment = interval * (rank.value / kHeartbeatGroup) / groups;
  const absl::Duration since = (now + interval / 8 - absl::UnixEpoch() - moment) % interval;
  return interval / 8 + interval - since;
}

}  // namespace coordd
