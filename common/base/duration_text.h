// How long something took, or will, for people: nobody reads "10.000095802s".
#pragma once

#include <string>

#include "absl/time/time.h"

namespace coordd {

// As absl::FormatDuration, with the digits that somebody reads: seconds from a minute on, tenths
// from ten seconds on, and thousandths; less than a millisecond in microseconds. Rounded towards
// zero, so that a limit that was just passed is named as it was given.
inline std::string DurationText(absl::Duration duration) {
  const absl::Duration size = absl::AbsDuration(duration);
  absl::Duration unit = absl::Microseconds(1);
  if (size >= absl::Minutes(1)) {
    unit = absl::Seconds(1);
  } else if (size >= absl::Seconds(10)) {
    unit = absl::Milliseconds(100);
  } else if (size >= absl::Milliseconds(1)) {
    unit = absl::Milliseconds(1);
  }
  return absl::FormatDuration(absl::Trunc(duration, unit));
}

}  // namespace coordd
