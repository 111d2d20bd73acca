// What a worker says when it leaves, and when. PURE
#pragma once

#include <string>
#include <utility>

#include "absl/time/time.h"
#include "worker/protocol/worker_events.h"

namespace coordd {

// Not thread-safe: a part of WorkerState.
class Goodbye {
 public:
  // The last word on how long it is held; the first one on a failure. Who `may_fail` not: the
  // others have lost this rank already, so that its error is no news for them.
  void Request(const LeaveRequested& in, bool may_fail) {
    held_until_ = in.held_until;
    finished_told_ = false;
    if (may_fail && failure_.empty()) failure_ = in.failure;
  }

  bool failing() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }

  // Whether it is not to be said yet. `now` must not decrease.
  bool Holds(absl::Time now) {
    if (now >= held_until_) held_until_ = absl::InfinitePast();
    return held();
  }
  // Once, for each time that it is held.
  bool TakeFinished() { return !std::exchange(finished_told_, true); }
  // When it is to be said, if all that was to be before is finished.
  absl::Time next_deadline() const {
    return held() && finished_told_ ? held_until_ : absl::InfiniteFuture();
  }

 private:
  bool held() const { return held_until_ != absl::InfinitePast(); }

  absl::Time held_until_ = absl::InfinitePast();
  bool finished_told_ = false;
  std::string failure_;
};

}  // namespace coordd
