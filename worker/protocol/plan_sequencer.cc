#include "worker/protocol/plan_sequencer.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace coordd {

absl::Status PlanSequencer::Launch(LaneId lane, int64_t sequence) {
  Lane& state = lanes_[lane];
  if (sequence != state.launched + 1) {
    return absl::InternalError(absl::StrCat("coordd planned batch ", sequence, " on lane ",
                                            ToInt(lane), ", expected ", state.launched + 1));
  }
  state.launched = sequence;
  state.running.insert(sequence);
  ++in_flight_;
  return absl::OkStatus();
}

void PlanSequencer::Complete(LaneId lane, int64_t sequence) {
  const auto found = lanes_.find(lane);
  COORDD_CHECK(found != lanes_.end() && found->second.running.erase(sequence) == 1);
  --in_flight_;
  if (found->second.ended && found->second.running.empty()) Forget(found);
}

void PlanSequencer::Forget(std::map<LaneId, Lane>::iterator lane) {
  ended_[lane->first] = lane->second.launched;
  if (ended_.size() > kMaxEndedLanes) ended_.erase(ended_.begin());
  lanes_.erase(lane);
}

void PlanSequencer::End(LaneId lane) {
  const auto found = lanes_.find(lane);
  if (found == lanes_.end()) return;
  found->second.ended = true;
  if (found->second.running.empty()) Forget(found);
}

std::vector<LaneProgress> PlanSequencer::Progress() const {
  std::vector<LaneProgress> progress;
  for (const auto& [lane, state] : lanes_) {
    const int64_t completed = state.running.empty() ? state.launched : *state.running.begin() - 1;
    progress.push_back({lane, state.launched, completed});
  }
  return progress;
}

}  // namespace coordd
