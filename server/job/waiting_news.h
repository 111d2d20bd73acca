// When those who wait for a generation, and its members, hear how many wait.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "server/job/job_messages.h"
#include "server/job/job_workers.h"
#include "server/model/turn.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe. They hear of it after it has changed, and once a
// second at most.
class WaitingNews {
 public:
  struct Situation {
    bool members_may_act = false;  // they can do something about those who wait
    std::string reason;            // why there is no generation yet
  };
  // Those who wait how many they are, and members that somebody does; if it is due.
  void Tell(const Situation& is, const JobWorkers& workers, const JobMessages& messages,
            const Turn& turn);

  static constexpr absl::Duration kInterval = absl::Seconds(1);

  void Changed() { changed_ = true; }
  void Forget() { changed_ = false; }
  bool IsDue(absl::Time now) const { return changed_ && now >= next_at_; }
  void Told(absl::Time now) { next_at_ = now + kInterval; }
  void NotBefore(absl::Time at) { next_at_ = std::max(next_at_, at); }
  absl::Time NextDeadline() const { return changed_ ? next_at_ : absl::InfiniteFuture(); }

  // How many wait, as the members know it; -1: what they know is unknown.
  int32_t told_members() const { return told_members_; }
  void TellMembers(int32_t waiting) { told_members_ = waiting; }

 private:
  bool changed_ = false;
  absl::Time next_at_ = absl::InfinitePast();
  int32_t told_members_ = 0;
};

}  // namespace coordd
