// The signals of a poll loop. (io)
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "client/coordrun/unique_fd.h"

namespace coordd {

// Blocks the signals that end a run or are passed on, ignores SIGPIPE, and returns a non-blocking
// descriptor that tells them instead.
absl::StatusOr<UniqueFd> OpenSignals();

// Calls `handle` for each that has come.
void ReadSignals(const UniqueFd& signals, const std::function<void(int signal)>& handle);

}  // namespace coordd
