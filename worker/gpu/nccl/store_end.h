// What the end of a generation is to those who wait at its store. PURE.
#pragma once

#include "absl/status/status.h"

namespace coordd {

// The store refuses keys of a generation that is over by FAILED_PRECONDITION (store.h), which says
// of a program's call that it should not have been made. ABORTED, as of whatever was under way,
// for which the program is told of the end; other statuses as they are.
inline absl::Status EndOr(absl::Status status) {
  if (!absl::IsFailedPrecondition(status)) return status;
  return absl::AbortedError(status.message());
}

}  // namespace coordd
