// Small files of this user, in places where others may have put something of the same name. (io)
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coordd {

// The first 64 KiB of a file: more is not ours. A symbolic link is not followed, a pipe not waited
// for. `kind` names it in errors, e.g. "connection file". NOT_FOUND: there is none;
// FAILED_PRECONDITION: another user's; UNAVAILABLE: it cannot be read.
absl::StatusOr<std::string> ReadOwnFile(const std::string& path, absl::string_view kind);
// Reads the first 64 KiB of a file as ReadOwnFile does, but the file has to be `owner`'s.
absl::StatusOr<std::string> ReadFileOf(uid_t owner, const std::string& path,
                                       absl::string_view kind);

}  // namespace coordd
