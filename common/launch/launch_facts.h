// What launcher_detect.h and auto_coordinator.h want to know of this machine. (io)
#pragma once

#include "common/base/environment.h"
#include "common/launch/auto_coordinator.h"
#include "common/launch/launcher_detect.h"

namespace coordd {

// The host name, a reader of files of at most 16 MiB, and this process's ancestors.
LaunchFacts ThisLaunchFacts();

// COORDD_RENDEZVOUS_FILE, the home directory and a private directory of this machine (which is
// made), of `environment`.
AutoSettings AutoSettingsFrom(const Environment& environment);

}  // namespace coordd
