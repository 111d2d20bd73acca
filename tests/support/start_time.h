// When the tests of pure code begin.
#pragma once

#include "absl/time/time.h"

namespace coordd {

inline const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

}  // namespace coordd
