// What coordrun in one of several pods does for the job of all of them: -np counts the workers of
// this pod. PURE
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/run_plan.h"

namespace coordd {

// Makes `options` those of a run that takes part in the job of all pods (RunOptions::pods), if this
// process is a pod of several and nothing says how else it is meant: --launcher, --coordinator,
// --size, or hosts. INVALID_ARGUMENT, FAILED_PRECONDITION: what is not known, such as the number of
// pods, and how to say it.
absl::Status TakePart(const PlanInputs& inputs, RunOptions* options);

}  // namespace coordd
