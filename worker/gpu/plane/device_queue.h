// The batches of a rank's devices, in the order in which they were launched.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/protocol/types.h"
#include "worker/execute/batch_job.h"

namespace coordd {

// One thread at a time. What can be done about each entry is decided outside.
//
// Invariant: an entry that is away keeps its place.
class DeviceQueue {
 public:
  struct Entry {
    std::unique_ptr<BatchJob> batch;  // nullptr: it is at the executor or the stager
    ProcessSetId process_set;
    LaneId lane;  // of the host's data plane
    int64_t sequence = 0;
    bool was_away = false;
    bool for_nccl = false;  // as agreed
  };
  // What can be done about an entry.
  enum class Next {
    kWait,         // for its own set, to travel over the host
    kWaitForNccl,  // and everything that NCCL launches waits for it
    kAway,         // it has gone away and will come back
    kGone,         // it is launched, or has ended
  };
  // What stands before an entry.
  struct Before {
    bool nccl = false;                 // what NCCL may still have to launch
    std::set<LaneId> waiting, staged;  // whose batches wait; wait to travel over the host
  };

  void Push(std::unique_ptr<BatchJob> batch) {
    Entry entry;
    entry.process_set = batch->process_set();
    entry.lane = batch->data_lane();
    entry.sequence = batch->sequence();
    entry.batch = std::move(batch);
    entries_.push_back(std::move(entry));
  }
  // REQUIRES: it was away.
  void Return(std::unique_ptr<BatchJob> batch) {
    const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
      return e.lane == batch->data_lane() && e.sequence == batch->sequence();
    });
    COORDD_CHECK(entry != entries_.end() && entry->batch == nullptr);
    entry->batch = std::move(batch);
    entry->was_away = true;
    entry->batch->sizes_only = false;
  }
  // Nothing follows on the lane.
  void EndLane(LaneId lane) { ended_lanes_.insert(lane); }
  // Whether anything is here that is not away.
  bool has_any() const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const Entry& entry) { return entry.batch != nullptr; });
  }

  // Moves on what `next(entry, before)` says, from the oldest to the newest; whether anything has
  // moved. Of an entry that has gone away it is asked once more, and has to say that it waits.
  // Calls `lane_ended(lane)` of each that has ended once nothing of it is left.
  template <typename F, typename G>
  bool Advance(F next, G lane_ended) {
    bool moved = false;
    Before before;
    for (auto it = entries_.begin(); it != entries_.end();) {
      const Next what = next(*it, before);
      if (what == Next::kWait || what == Next::kWaitForNccl) {
        before.nccl = before.nccl || what == Next::kWaitForNccl;
        before.waiting.insert(it->lane);
        if (what == Next::kWait) before.staged.insert(it->lane);
        ++it;
        continue;
      }
      moved = true;
      if (what == Next::kGone) {
        it = entries_.erase(it);
      }
    }
    std::erase_if(ended_lanes_, [&](LaneId lane) {
      const auto of_lane = [lane](const Entry& entry) { return entry.lane == lane; };
      if (std::any_of(entries_.begin(), entries_.end(), of_lane)) return false;
      lane_ended(lane);
      return true;
    });
    return moved;
  }

 private:
  std::deque<Entry> entries_;
  std::set<LaneId> ended_lanes_;  // of which the host is to be told
};

}  // namespace coordd
