// When coordd is asked whether those who are left can go on after others have ended well. PURE
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace coordd {

// Not thread-safe; `now` must not decrease. Somebody looks once after each end, and, as long as a
// look tells nothing, again and again, ever later.
class EarlyLook {
 public:
  // What others have to end, too, when a worker has ended well.
  static constexpr absl::Duration kWait = absl::Seconds(1);
  static constexpr absl::Duration kLongestWait = absl::Seconds(30);

  void Ended(absl::Time now) {
    at_ = std::min(at_, now + kWait);
    wait_ = kWait;
  }
  bool IsDue(absl::Time now) const { return now >= at_; }
  absl::Time NextDeadline() const { return at_; }  // InfiniteFuture: nobody has to look

  // Somebody looks. `again`: who was started again may still be on its way to coordd.
  void Look(bool again, absl::Time now) { at_ = again ? now + kWait : absl::InfiniteFuture(); }
  // The look has told nothing: nor need the others have come by now; or they never will, and then
  // this is not worth much.
  void ToldNothing(absl::Time now) {
    at_ = now + wait_;
    wait_ = std::min(2 * wait_, kLongestWait);
  }

 private:
  absl::Time at_ = absl::InfiniteFuture();
  absl::Duration wait_ = kWait;
};

}  // namespace coordd
