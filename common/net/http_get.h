// Asks a server of ours for one page. (io)
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/net/address.h"

namespace coordd {

// The body of what GET answers; blocks until `deadline` at most. UNAVAILABLE: nobody answers, or
// not all of it by then, or with another status than 200; RESOURCE_EXHAUSTED: with more than
// `bytes_max`.
absl::StatusOr<std::string> HttpGet(const HostPort& address, absl::string_view path,
                                    size_t bytes_max, absl::Time deadline, Clock& clock);

}  // namespace coordd
