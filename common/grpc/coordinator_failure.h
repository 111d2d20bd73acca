// Why one attempt after the other to come to coordd fails: what coordd itself has said, else what a
// probe finds, instead of gRPC's words. Pure but for the probe that it is given.
#pragma once

#include <functional>

#include "absl/status/status.h"

namespace coordd {

// One thread uses an object.
class CoordinatorFailure {
 public:
  // `probe`: as ProbeCoordinator, of the one address that is tried; nullptr: none, as where another
  // address may do.
  explicit CoordinatorFailure(std::function<absl::Status()> probe);

  // Of an attempt that has failed with `status` (UNAVAILABLE or DEADLINE_EXCEEDED, of FromCoordd).
  // Calls the probe now and then, so that a crowd does not double itself by asking.
  // FAILED_PRECONDITION, UNAUTHENTICATED: final, a whole sentence; otherwise UNAVAILABLE or
  // DEADLINE_EXCEEDED, in words that follow "coordd at HOST:PORT: ".
  absl::Status Explain(const absl::Status& status);

  // The best that is known at the end: what coordd has said goes before what the way to it has.
  // `status`: of the last attempt; not OK.
  absl::Status Last(const absl::Status& status) const;

 private:
  absl::Status Probed(const absl::Status& status);

  const std::function<absl::Status()> probe_;
  int attempts_ = 0;
  int aborted_ = 0;         // probes in a row that were ABORTED
  absl::Status of_coordd_;  // its last own words; OK: none
  absl::Status found_;      // by the last probe, or of a name; OK: nothing
};

}  // namespace coordd
