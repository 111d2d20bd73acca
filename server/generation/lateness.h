// Which rank is late, from what ranks tell of the collectives that they execute without asking.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace coordd {

// PURE, not thread-safe. One for each schedule.
//
// All ranks of a collective end it at about the same time. So who has spent less time in the same
// collectives came later by as much, and no clocks have to be compared. Sums are the same when they
// go up to the same cycle: ranks tell them at marks (worker/protocol/cycle_marks.h), and a window
// ends at the next mark that all members have told. A rank whose heartbeat comes a second after the
// others' is compared a second later, never with other collectives than its own.
class CycleLateness {
 public:
  // Marks of some members that are not known of all. Members tell at most eight in a heartbeat, and
  // heartbeats are at most one interval apart. Eight bytes each, for each member.
  static constexpr size_t kOpenMarksMax = 32;

  // `collectives`: in a cycle, of those that need every rank.
  CycleLateness(size_t members, int64_t collectives)
      : members_(members), collectives_(collectives), before_(members) {}

  struct Window {
    std::vector<absl::Duration> lag;  // by member: behind the first, mean over the collectives
    int64_t collectives = 0;
  };
  // The collectives of the first `cycles` cycles took a member so long in all. A window, if it was
  // the last member to tell so. Marks at or before the last window, and what a member tells again,
  // are ignored.
  std::optional<Window> Told(size_t member, int64_t cycles, absl::Duration busy);

 private:
  struct Mark {
    size_t told = 0;
    std::vector<absl::Duration> busy;  // InfiniteDuration: not told
  };
  const size_t members_;
  const int64_t collectives_;
  int64_t cycles_ = 0;                  // where the last window ended
  std::vector<absl::Duration> before_;  // there
  std::map<int64_t, Mark> open_;
};

// The rank that the others wait for, -1: none. It is clearly behind, not just last by chance: by
// more than two milliseconds, and more than twice as much as the rank in the middle.
int32_t SlowestRank(absl::Span<const absl::Duration> lag);

}  // namespace coordd
