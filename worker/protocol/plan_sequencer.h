// Where each lane of this rank is: batches launch in the order of coordd's plans, without gaps.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "common/protocol/types.h"

namespace coordd {

struct LaneProgress {
  LaneId lane;
  int64_t launched = 0;   // sequence of the last batch launched
  int64_t completed = 0;  // sequence up to which all have completed
};

// PURE. One per generation.
class PlanSequencer {
 public:
  // INTERNAL: `sequence` is not the next of its lane; names both.
  absl::Status Launch(LaneId lane, int64_t sequence);
  // REQUIRES: launched before, and not completed yet. Batches may complete in any order.
  void Complete(LaneId lane, int64_t sequence);

  // Nothing is launched on this lane any more; it is forgotten once what runs has completed.
  void End(LaneId lane);

  bool drained() const { return in_flight_ == 0; }
  std::vector<LaneProgress> Progress() const;  // by lane
  // The last positions of lanes that have ended; of those that ended first nothing, beyond the
  // bound.
  static constexpr size_t kMaxEndedLanes = 4096;
  const std::map<LaneId, int64_t>& ended() const { return ended_; }

 private:
  struct Lane {
    int64_t launched = 0;
    std::set<int64_t> running;
    bool ended = false;
  };
  void Forget(std::map<LaneId, Lane>::iterator lane);

  std::map<LaneId, Lane> lanes_;
  std::map<LaneId, int64_t> ended_;  // lanes are numbered in the order in which they begin
  int64_t in_flight_ = 0;
};

}  // namespace coordd
