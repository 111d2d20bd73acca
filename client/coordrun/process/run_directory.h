// The secrets of one run, in a directory that nobody else can enter. (io)
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/environment.h"

namespace coordd {

// Makes DIR/coordrun-XXXXXX with mode 0700, where DIR is `parent`, or when that is empty
// XDG_RUNTIME_DIR, TMPDIR or /tmp, and locks it for the life of this process and those that it
// forks. Removes those of runs that were killed altogether, as Slurm does when a job's time is
// over: nobody holds their lock.
absl::StatusOr<std::string> MakeRunDirectory(const Environment& environment,
                                             const std::string& parent = "");

// A random token in DIR/token, mode 0600. Returns its path.
absl::StatusOr<std::string> WriteToken(const std::string& directory);

}  // namespace coordd
