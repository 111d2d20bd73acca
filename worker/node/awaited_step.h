// For which members a run on a node's board waits.
#pragma once

#include <cstdint>

#include "worker/node/node_lane.h"

namespace coordd {

// Not thread-safe: a part of a run. Template of its lane, so that it can be tested without memory.
//
// Invariant: waits for nobody once what was asked for last has been reached.
template <typename Lane = NodeLane>
class AwaitedStep {
 public:
  // Whether they have come to the step; if not, they are waited for from now on.
  bool AllHaveReached(Lane& lane, int64_t step) {
    return Note(lane.FirstBehind(step) < 0, step, kAll);
  }
  bool HasReached(Lane& lane, int32_t member, int64_t step) {
    return Note(lane.HasReached(member, step), step, member);
  }
  bool WaitsFor(Lane& lane, int32_t member) const {
    if (step_ < 0 || member == lane.self()) return false;
    if (member_ != kAll && member_ != member) return false;
    return !lane.HasReached(member, step_);
  }

 private:
  static constexpr int32_t kAll = -1;

  bool Note(bool reached, int64_t step, int32_t member) {
    step_ = reached ? -1 : step;
    member_ = member;
    return reached;
  }

  int64_t step_ = -1;  // -1: none
  int32_t member_ = kAll;
};

}  // namespace coordd
