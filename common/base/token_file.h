// The file that holds a secret: a job's token, or that of coordd's HTTP. (io)
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/named_file.h"

namespace coordd {

// What the file holds, without white space at its ends. `named_by` begins the error, e.g.
// "COORDD_TOKEN_FILE". INVALID_ARGUMENT: it cannot be read, is empty or a folder, or is a regular
// file that others than its owner can reach. A pipe is read as it is (`<(pass show job)`), unless
// it does not end within `pipe_within`.
// `has_end`, which may be null: whether a line's end is its last byte.
absl::StatusOr<std::string> ReadTokenFile(absl::string_view named_by, const std::string& path,
                                          bool* has_end = nullptr,
                                          absl::Duration pipe_within = kPipeWithin);
// Checks the file as ReadTokenFile does, where it is read several times, also by others: a pipe or
// a device is refused, since it would be empty for them.
absl::Status CheckTokenFile(absl::string_view named_by, const std::string& path);

}  // namespace coordd
