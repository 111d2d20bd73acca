// Where workers on other hosts can find the coordd on this one. (io)
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/coordrun/plan/run_options.h"

namespace coordd {

// Numeric addresses of this machine's interfaces that are up; `networks` ("eth0,ib0") limits them.
// Loopback ones come last: simulated hosts reach them. INVALID_ARGUMENT: an interface is not there.
absl::StatusOr<std::vector<std::string>> OwnAddresses(const std::string& networks);

// This machine's name, and with its domain where that can be found out.
std::vector<std::string> OwnNames();

}  // namespace coordd
