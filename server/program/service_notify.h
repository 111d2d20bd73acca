// Tells a service manager how far this process is (sd_notify(3)'s protocol): systemd's Type=notify.
// (io)
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/base/environment.h"

namespace coordd {

// Sends "READY=1" and its like, a line each, to the socket that NOTIFY_SOCKET of `environment`
// names; nothing without it. UNAVAILABLE: it cannot be reached.
absl::Status NotifyService(const Environment& environment, const std::string& state);

}  // namespace coordd
