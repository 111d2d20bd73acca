// A launcher inside of another one: each task of the outer one would start a job of its own, and
// all would look well. PURE
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/run_plan.h"
#include "common/launch/launcher_detect.h"

namespace coordd {

// `place` if this coordrun is one of several processes that a launcher has started, or of nobody
// says how many.
std::optional<LaunchPlace> TaskOf(const LaunchPlace& place);

// FAILED_PRECONDITION: coordrun is one of several tasks, and nothing says that this is meant so:
// --launcher local, or a coordd for all (--coordinator, --size).
absl::Status CheckTask(const RunOptions& options, const std::optional<LaunchPlace>& task);

// FAILED_PRECONDITION: the command is a launcher, of which `np` workers would start one each, and
// no --launcher says that this is meant so.
absl::Status CheckCommand(const RunOptions& options, int32_t np);

}  // namespace coordd
