// What users of torch fall into: threads that do not fit the cores, a small /dev/shm, variables
// that take from coordd what it does. PURE
#pragma once

#include <string>
#include <vector>

#include "client/coordrun/checks/preflight.h"
#include "common/base/environment.h"

namespace coordd {

// Warnings, none an error: one sentence for each trap and the hosts that are alike in it.
// `environment`: what the workers get of the user's, with -x. `reports` may be empty, where nobody
// has looked at the hosts: then only `environment` is judged. `command` is the workers'.
std::vector<Finding> JudgeTorchTraps(const std::vector<HostReport>& reports,
                                     const Environment& environment,
                                     const std::vector<std::string>& command);

}  // namespace coordd
