// coordd's command line. (io)
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/environment.h"
#include "common/base/log.h"
#include "server/service/coord_server.h"
#include "server/service/end_watch.h"

namespace coordd {

struct ServerFlags {
  CoordServerOptions server;
  LogLevel log_level = LogLevel::kInfo;
  int ready_fd = -1;     // where to say that it is ready; -1: nowhere
  bool standby = false;  // wait for the state instead of ending when another coordd has it
  EndWatchOptions end;
  std::string remove_directory;  // at the end; empty: none
  // Set by --help and --version: to be printed instead of serving.
  std::optional<std::string> print;
};

// Exit codes of the program, as --help lists them.
inline constexpr int kExitStopped = 0;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitCannotListen = 3;
inline constexpr int kExitState = 4;          // another coordd has it, or it cannot be had now
inline constexpr int kExitStateUnusable = 5;  // until somebody has mended it

// INVALID_ARGUMENT: one sentence about the flag that is wrong. What the flags say is validated, and
// where no --connection-file or --store is given, one is chosen from `environment`.
absl::StatusOr<ServerFlags> ParseServerFlags(int argc, const char* const* argv,
                                             const Environment& environment);

}  // namespace coordd
