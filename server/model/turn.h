// When something happens, and what comes of it.
#pragma once

#include "absl/time/time.h"
#include "server/model/effects.h"

namespace coordd {

// What each decision of the state machine needs besides its input: one value for all that is
// decided at one time. Made where an input comes in, and passed on as it is.
struct Turn {
  absl::Time now;
  Effects& effects;  // in the order in which they are to be carried out
};

}  // namespace coordd
