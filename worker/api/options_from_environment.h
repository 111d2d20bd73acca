// A worker's options from its environment: COORDD_* variables first, then what a launcher has set.
#pragma once

#include "absl/status/statusor.h"
#include "common/base/environment.h"
#include "common/launch/launcher_detect.h"
#include "worker/api/worker_options.h"

namespace coordd {

// `facts`: of this machine, for the launcher's detection. INVALID_ARGUMENT: names the variable,
// what it holds and what is expected.
absl::StatusOr<WorkerOptions> WorkerOptionsFrom(const Environment& environment,
                                                const LaunchFacts& facts = {});

}  // namespace coordd
