// The hosts of reports, and how a sentence names them. PURE
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/coordrun/checks/preflight.h"

namespace coordd {

// Each host once, although srun's tasks each have a report. Point into `reports`.
std::vector<const HostReport*> Hosts(const std::vector<HostReport>& reports);

// The cores of the host of `host`: srun binds each task to cores of its own, or lets all have the
// same.
int32_t CoresOf(const HostReport& host, const std::vector<HostReport>& reports);

// As the user has named it.
std::string NameOf(const HostReport& report);

// "hosts n1, n2 and 4 more". REQUIRES: there is one.
std::string Names(const std::vector<std::string>& hosts);

}  // namespace coordd
