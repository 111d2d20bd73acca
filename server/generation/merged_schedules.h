// The schedules of which the members of a generation say that they know, each put together of its
// parts.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// PURE. Not thread-safe.
class MergedSchedules {
 public:
  // Of each the next part. INTERNAL: no schedule has that number.
  absl::Status Report(const v1::Schedule& part) { return Append(part, reported_); }
  absl::Status Hear(const v1::CoordinatorMessage& message);
  void Freeze(int64_t id);

  // All of them; of one that was both reported and heard what was reported counts. Nothing else is
  // taken from then on.
  std::map<int64_t, v1::Schedule>& Whole();
  // One that nobody has heard to its end has not begun.
  bool IsInForce(const v1::Schedule& schedule) const {
    return !schedule.more() && !cut_.contains(schedule.id());
  }
  bool IsFrozen(int64_t id) const { return frozen_.contains(id); }
  int64_t Free(int64_t most);  // as Remains::Free

 private:
  using ById = std::map<int64_t, v1::Schedule>;
  static absl::Status Append(const v1::Schedule& part, ById& schedules);

  ById reported_, heard_;
  std::set<int64_t> frozen_, cut_;
};

}  // namespace coordd
