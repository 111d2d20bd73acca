// The file into which `coordctl trace` writes. (io)
#pragma once

#include <string>

#include "absl/status/status.h"

namespace coordd {

// INVALID_ARGUMENT: `file` is no file, which it would replace. Otherwise as WriteFileAtomically.
absl::Status WriteTimeline(const std::string& file, const std::string& timeline);

}  // namespace coordd
