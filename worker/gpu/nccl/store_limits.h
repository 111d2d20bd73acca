// How long a rank waits for the key-value service at a time.
#pragma once

#include "absl/time/time.h"

namespace coordd {

// The store's Get waits; in slices, so that a stop is heard.
inline constexpr absl::Duration kGetSlice = absl::Milliseconds(200);
inline constexpr absl::Duration kStoreLimit = absl::Seconds(10);

}  // namespace coordd
