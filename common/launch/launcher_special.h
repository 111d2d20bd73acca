// What launchers do that a table of variables cannot say. PURE
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/environment.h"
#include "common/launch/launcher_detect.h"

namespace coordd {

// The first of `names` (separated by spaces) that is set; empty: none.
std::string FirstSet(const Environment& environment, absl::string_view names);
// A whole number of at least `minimum` and at most a million times a thousand; nullopt: it is none.
std::optional<int32_t> NumberOf(absl::string_view text, int32_t minimum);

// Between the two parts of LaunchPlace::instance: what the launcher says, and the schedulers' jobs
// in which it runs, so that two jobs never meet. The second part is missing where no job is seen,
// as on hosts that a launcher has reached through ssh, while it may be seen elsewhere in the same
// start.
inline constexpr char kInJob[] = " in job ";

// `finish` functions of launcher_table.cc: empty when the rule applies, else why it does not.
std::string FinishTorchrun(const Environment&, const LaunchFacts&, LaunchPlace&);
std::string FinishOpenMpi(const Environment&, const LaunchFacts&, LaunchPlace&);
std::string FinishJsm(const Environment&, const LaunchFacts&, LaunchPlace&);
std::string FinishHydra(const Environment&, const LaunchFacts&, LaunchPlace&);
std::string FinishSlurm(const Environment&, const LaunchFacts&, LaunchPlace&);
std::string FinishJobSet(const Environment&, const LaunchFacts&, LaunchPlace&);
std::string FinishAwsBatch(const Environment&, const LaunchFacts&, LaunchPlace&);
std::string FinishSageMaker(const Environment&, const LaunchFacts&, LaunchPlace&);
std::string FinishLsf(const Environment&, const LaunchFacts&, LaunchPlace&);
std::string FinishHostsOnly(const Environment&, const LaunchFacts&, LaunchPlace&);

}  // namespace coordd
