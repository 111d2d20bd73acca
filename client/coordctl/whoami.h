// What coordctl whoami prints. PURE
#pragma once

#include <string>

#include "common/launch/launcher_detect.h"

namespace coordd {

// `coordinator`: one sentence on how a worker here would find its coordd; empty: left out.
std::string WhoamiText(const LaunchPlace& place, const std::string& coordinator);
// The same place as a JSON object; numbers that are not known are null.
std::string WhoamiJson(const LaunchPlace& place, const std::string& coordinator);

}  // namespace coordd
