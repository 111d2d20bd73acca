// What coordrun --dry-run prints. (io: the path of this program, the names of this machine)
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/run_plan.h"
#include "common/base/environment.h"

namespace coordd {

// The commands that a run with these options would start, one a line, each below a comment that
// says where and for which ranks. What is not known before (ports, the run's directory) is in
// capitals. NOT_FOUND: -x names a variable that is not set.
absl::StatusOr<std::string> DryRunText(const RunOptions& options, const RunPlan& plan,
                                       const Environment& environment);

}  // namespace coordd
