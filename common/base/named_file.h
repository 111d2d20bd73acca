// Files whose names somebody has given, where there may be something else: a pipe, a device, a
// folder. (io)
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/owned_fd.h"

namespace coordd {

// "a pipe" for st_mode.
absl::string_view KindOfFile(mode_t mode);

// FAILED_PRECONDITION: "PATH is a pipe, expected a file".
absl::Status ExpectFile(int fd, const std::string& path);

// For what is about to be replaced, or removed: FAILED_PRECONDITION: something is there, or a link
// to something, that is no file ("PATH is a device, expected a file or a new name").
absl::Status ExpectFileOrNothing(const std::string& path);

// Opens a file to write, as open does, without waiting for whoever may read a pipe; a character
// device (/dev/null) will do, too. FAILED_PRECONDITION: there is something else. UNAVAILABLE: what
// errno says.
absl::StatusOr<OwnedFd> OpenToWrite(const std::string& path, int flags, mode_t mode);

// Long enough to type what `<(pass show job)` asks for.
inline constexpr absl::Duration kPipeWithin = absl::Minutes(1);

// What the file holds, `bytes_max` + 1 bytes at most. A pipe or a device is read until its end.
// INVALID_ARGUMENT, a sentence without its subject: "cannot be read: Permission denied", "is a
// folder; expected a file", "is a pipe that did not end within 1m; expected ...".
absl::StatusOr<std::string> ReadNamedFile(const std::string& path, size_t bytes_max,
                                          absl::Duration pipe_within = kPipeWithin);

}  // namespace coordd
