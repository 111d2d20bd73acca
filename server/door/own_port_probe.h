// Whether coordd's own port answers, as a client sees it. (io)
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/net/address.h"

namespace coordd {

// Connects to `own` and begins as a client does, with TLS or with HTTP/2, until the other side has
// answered; the connection is closed then. UNAVAILABLE: what did not happen within `timeout`.
absl::Status ProbeOwnPort(const HostPort& own, bool tls, absl::Duration timeout);

}  // namespace coordd
