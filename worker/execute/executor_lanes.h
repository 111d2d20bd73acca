// The batches of an executor that are not in flight, lane by lane.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/protocol/types.h"
#include "worker/execute/batch_job.h"
#include "worker/execute/open_groups.h"

namespace coordd {

struct ExecutorLane {
  std::deque<std::unique_ptr<BatchJob>> waiting;
  std::unique_ptr<BatchJob> sized;  // its sizes are known, its payload is next
  bool sizing = false;              // the last one launched is exchanging its sizes
  int in_flight = 0;
  int scratch_held = 0;  // loans of this lane that have not come back
  bool ended = false;    // it ends, and its group if it has one, when it is idle
  // With `confirm`: all ranks have their results, and they end with the groups they are of.
  std::vector<std::unique_ptr<BatchJob>> confirmed;
  OpenTensorGroups open_groups;

  bool has_next() const { return sized != nullptr || !waiting.empty(); }
  bool idle() const { return !has_next() && in_flight == 0 && confirmed.empty(); }
};

// Not thread-safe: of whoever sits in the driver's seat.
//
// Invariant: to_launch() is how many batches wait in all lanes, with sizes or without.
class ExecutorLanes {
 public:
  void Push(std::unique_ptr<BatchJob> batch) {
    ++to_launch_;
    lanes_[batch->data_lane()].waiting.push_back(std::move(batch));
  }
  // The batch's sizes are known. REQUIRES: it was the last one of the lane to be launched.
  void PushSized(ExecutorLane& lane, std::unique_ptr<BatchJob> batch) {
    COORDD_CHECK(lane.sized == nullptr);
    lane.sized = std::move(batch);
    ++to_launch_;
  }
  // The next batch of the lane has been moved away.
  void PopNext(ExecutorLane& lane, bool sized) {
    if (sized) {
      lane.sized = nullptr;
    } else {
      lane.waiting.pop_front();
    }
    --to_launch_;
  }
  int64_t to_launch() const { return to_launch_; }

  ExecutorLane& At(LaneId lane) { return lanes_.at(lane); }
  ExecutorLane* Find(LaneId lane) {  // nullptr: it has ended
    const auto found = lanes_.find(lane);
    return found == lanes_.end() ? nullptr : &found->second;
  }
  // Nothing follows on it.
  void End(LaneId lane) {
    lanes_[lane].ended = true;
    ++ended_;
  }
  bool has_ended() const { return ended_ > 0; }
  // Forgets those that have ended and are idle, each after `ended(id)`.
  template <typename F>
  void ForgetIdle(F ended) {
    for (auto at = lanes_.begin(); at != lanes_.end();) {
      if (!at->second.ended || !at->second.idle()) {
        ++at;
        continue;
      }
      --ended_;
      ended(at->first);
      at = lanes_.erase(at);
    }
  }

  // Launches one batch of each lane in turn, beginning behind the lane that was served last, as
  // long as `launch_next(lane)` launches any; whether it did.
  template <typename F>
  bool Serve(F launch_next) {
    if (to_launch_ == 0) return false;
    bool moved = false;
    bool more = true;
    while (more && to_launch_ > 0) {
      more = false;
      auto at = lanes_.upper_bound(last_served_);
      for (size_t i = 0; i < lanes_.size(); ++i, ++at) {
        if (at == lanes_.end()) at = lanes_.begin();
        if (!launch_next(at->second)) continue;
        last_served_ = at->first;
        more = true;
      }
      moved = moved || more;
    }
    return moved;
  }
  template <typename F>
  void ForEach(F each) {
    for (auto& [id, lane] : lanes_) each(lane);
  }

 private:
  std::map<LaneId, ExecutorLane> lanes_;
  LaneId last_served_;
  int64_t to_launch_ = 0;
  int64_t ended_ = 0;  // lanes that are to be forgotten
};

}  // namespace coordd
