// What has happened, for operators: the newest events in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "common/protocol/types.h"
#include "coordd/v1/admin.pb.h"
#include "server/model/effects.h"

namespace coordd {

// Where there are more the oldest goes, of the owner that has the most: all jobs of a name in
// certificates are one owner's, and a job of nobody's is its own. Enough for a day of a job that
// loses a worker every minute; some 2 MiB.
inline constexpr size_t kEventsKept = 8192;

// The kind of an event as operators see it. UNSPECIFIED: they do not see it, since it comes with
// every step (plans) or in floods (messages that were dropped).
v1::EventKind KindOf(Event::Kind kind);
// Whether somebody should look at it: a warning in the log.
bool IsWarning(const Event& event);
// Whether a stranger can make it happen as often as he likes.
bool StrangersCause(Event::Kind kind);

// Thread-safe: the coordinator thread adds, whoever is asked reads. Of what strangers cause it
// keeps some at once and then one in kStrangersEvery, which says how many others there were: so
// they cannot push out what has happened, in days. The metrics count all.
class EventLog {
 public:
  static constexpr absl::Duration kStrangersEvery = absl::Minutes(1);

  explicit EventLog(Epoch epoch) : epoch_(epoch) {}

  // Keeps the event, if operators see it. `owner`: whose its job is; empty: nobody's.
  void Add(const Event& event, absl::string_view owner, absl::Time now);
  v1::EventList Read(const v1::GetEventsRequest& request) const;

 private:
  using Number = int64_t;  // of an event
  struct Kept {
    // Shared, so that the coordinator thread waits for pointers to be copied only.
    std::shared_ptr<const v1::JobEvent> event;
    std::string owner;  // a key of numbers_
  };
  // Of an owner's events: in order_ whoever has the most comes first, of several whoever has the
  // oldest.
  using Share = std::tuple<ptrdiff_t, Number, std::string>;  // minus how many, the oldest, whose
  static Share ShareOf(const std::string& owner, const std::deque<Number>& numbers) {
    return {-static_cast<ptrdiff_t>(numbers.size()), numbers.front(), owner};
  }

  void KeepLocked(Kept kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MakeRoomLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const Epoch epoch_;

  // Guarded by mu_.
  mutable Mutex mu_;
  std::map<Number, Kept> events_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::deque<Number>> numbers_ ABSL_GUARDED_BY(mu_);  // none is empty
  std::set<Share> order_ ABSL_GUARDED_BY(mu_);                              // all of numbers_
  Number last_number_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<Event::Kind, LogLimit> limits_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
