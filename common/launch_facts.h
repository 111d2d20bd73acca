// What launcher_detect.h wants to know of this machine. (io)
#pragma once

#include "common/launcher_detect.h"

namespace coordd {

// The host name, and a reader of files of at most 16 MiB.
LaunchFacts ThisLaunchFacts();

}  // namespace coordd
