// Files that readers see whole or not at all. (io)
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace coordd {

// Writes beside `path`, then renames over it; a symbolic link at `path` is replaced, not followed.
// For what can be made again: it does not wait for the disk. Nothing has changed: UNAVAILABLE: in
// one sentence; FAILED_PRECONDITION: there is a device, a pipe, a folder, or a link to one.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view contents, mode_t mode);

}  // namespace coordd
