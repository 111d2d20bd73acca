// The signals of a poll loop. (io)
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "common/base/owned_fd.h"

namespace coordd {

// Whether this process ignores it: nohup and shells that start a program in the background mean
// that to hold for all that the program starts.
bool IsIgnored(int signal);

// Blocks the signals that end a run or are passed on, ignores SIGPIPE, and returns a non-blocking
// descriptor that tells them instead. Those that were ignored stay so, and are not told.
absl::StatusOr<OwnedFd> OpenSignals();

// Calls `handle` for each that has come.
void ReadSignals(const OwnedFd& signals, const std::function<void(int signal)>& handle);

}  // namespace coordd
