// With which status coordctl ends. PURE
#pragma once

#include "absl/status/status.h"

namespace coordd {

// Scripts go by these: none of them changes its meaning.
enum ExitCode {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kNoCoordd = 3,
  kNoJob = 4,
  kRefused = 5,
  kNotAllowed = 6
};

// The end of each --help.
inline constexpr char kExitCodes[] =
    "Exit status: 0 done, 1 failed (coordd cannot be reached, a file cannot be written), 2 wrong "
    "usage, 3 no coordd found or several, 4 no such job, rank or node, 5 refused, since the job "
    "could not go on, 6 not allowed: coordd and who asks do not take one another's certificate, or "
    "the role or the token is not for this.";

// Of a call that has failed. REQUIRES: `failure` is not OK.
ExitCode ExitCodeOf(const absl::Status& failure);
// Of one that changes a job, or tells of its processes, which coordd also refuses for what they
// ask.
ExitCode ExitCodeOfChange(const absl::Status& failure);

}  // namespace coordd
