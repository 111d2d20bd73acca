// The secrets of one run, in a directory that nobody else can enter. (io)
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/environment.h"

namespace coordd {

// Makes DIR/coordrun-XXXXXX with mode 0700, where DIR is XDG_RUNTIME_DIR, TMPDIR or /tmp.
absl::StatusOr<std::string> MakeRunDirectory(const Environment& environment);

// A random token in DIR/token, mode 0600. Returns its path.
absl::StatusOr<std::string> WriteToken(const std::string& directory);

}  // namespace coordd
