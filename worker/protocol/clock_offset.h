// What coordd's clock says when ours says something.
#pragma once

#include "absl/time/time.h"

namespace coordd {

// PURE. From heartbeats and their answers: coordd read its clock between the sending and the
// answer's arrival, so the middle of the two is at most half the round trip away from it (D. Mills,
// RFC 5905). The best answer of late is kept: one that is fast, and not so old that the clocks may
// have drifted by more than another one's error.
class ClockOffset {
 public:
  // Two quartz clocks differ by less (RFC 5905 reckons with 15 for one).
  static constexpr double kDriftMax = 50e-6;

  // Sent at `sent`, arrived at `arrived`, both by our clock; `theirs`: coordd's clock in between.
  void Answered(absl::Time sent, absl::Time arrived, absl::Time theirs) {
    if (arrived < sent) return;
    const absl::Duration error = (arrived - sent) / 2;
    if (known_ && error > this->error(arrived)) return;
    known_ = true;
    offset_ = theirs - (sent + error);
    error_ = error;
    at_ = arrived;
  }

  bool known() const { return known_; }
  absl::Duration offset() const { return offset_; }  // coordd's clock minus ours
  // The offset's, at most, at this moment.
  absl::Duration error(absl::Time now) const { return error_ + (now - at_) * kDriftMax; }

 private:
  bool known_ = false;
  absl::Duration offset_, error_;
  absl::Time at_;
};

}  // namespace coordd
