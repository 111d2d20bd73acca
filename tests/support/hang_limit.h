// How long a test waits for what must come: against hangs only.
#pragma once

#include "absl/time/time.h"

namespace coordd {

inline constexpr absl::Duration kHangLimit = absl::Seconds(60);

}  // namespace coordd
