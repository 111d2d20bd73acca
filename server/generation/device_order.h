// Whether what coordd plans for NCCL could meet, on a device, what ranks launch by schedule.
#pragma once

#include <cstdint>

#include "server/members/member_list.h"
#include "server/members/rank_set.h"

namespace coordd {

// PURE. Not thread-safe. What ranks launch on their devices has to have one order on all of them
// (docs/design/nccl.md, "One order per device"). What coordd plans has that of its streams; what
// ranks launch by schedule, each when its own tensors are there, has an order of its own, and none
// with the other. So there is one schedule of tensors on devices at a time, and while some rank may
// still launch of it what is planned of such tensors travels through host memory
// (v1::FusedBatch.staged), whose lanes wait for nobody.
class DeviceOrder {
 public:
  explicit DeviceOrder(const MemberList& all)  // which outlives it
      : all_(all), finished_(all), told_(all) {}

  // Some rank may launch, or have yet to launch, by schedule.
  bool busy() const { return schedule_ != 0 || asks_; }
  // The schedule's number; 0: there is none, or it is not known.
  int64_t schedule() const { return schedule_; }

  // REQUIRES: no other one has begun and is not finished.
  void Begin(int64_t id, const MemberList& members);
  // `rank` has launched all of it up to its cut; 0: it executes none.
  void Finished(Rank rank, int64_t id);
  // coordd was started again: which schedules had been cut and not executed up to their cut is not
  // known until each rank has said that it has finished.
  void AskAll() { asks_ = true; }
  bool asks() const { return asks_; }

  bool CountsAreRight() const { return finished_.CountsAreRight() && told_.CountsAreRight(); }

 private:
  const MemberList& all_;
  int64_t schedule_ = 0;
  RankSet finished_;  // with it, or not in its set
  bool asks_ = false;
  RankSet told_;  // since AskAll
};

}  // namespace coordd
