// The coordd of one run. (io)
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/worker_environment.h"
#include "client/coordrun/process/child_process.h"
#include "common/base/clock.h"
#include "common/base/environment.h"

namespace coordd {

// Where the coordd of a run listens and what it keeps. When it is started again, the same.
struct CoordinatorSetup {
  std::string listen;            // host:port
  std::string http;              // host:port or "off"
  std::string store = "memory";  // as --store
  TlsFiles tls;                  // coordd's files; empty: none
};

// The arguments with which coordrun starts `program`. Values in, values out.
std::vector<std::string> CoordinatorCommand(const std::string& program, const RunOptions& options,
                                            const CoordinatorSetup& setup, int ready_fd);
// The coordd that lies beside this program, else the one in PATH.
std::string CoordinatorProgram();

struct CoordinatorAddresses {
  std::string listen;  // host:port
  std::string http;    // host:port; empty: off
};

// The addresses in the line that coordd writes to --ready-fd. INVALID_ARGUMENT.
absl::StatusOr<CoordinatorAddresses> ParseReadyLine(const std::string& line);

struct CoordinatorProcess {
  ChildProcess process;
  CoordinatorAddresses addresses;
};

// Starts the coordd that lies beside this program, else the one in PATH, and waits until it
// listens. NOT_FOUND: there is none. UNAVAILABLE, DEADLINE_EXCEEDED: with what it wrote to stderr.
absl::StatusOr<CoordinatorProcess> StartCoordinator(const RunOptions& options,
                                                    const CoordinatorSetup& setup,
                                                    const Environment& environment,
                                                    absl::Time deadline, Clock& clock);

}  // namespace coordd
