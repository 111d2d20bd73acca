// The coordd of a run and how its workers reach it: the one that was named, or one that is started
// here, with certificates and a token of its own. (io)
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/coordrun/coordinator/coordinator_process.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/run_plan.h"
#include "client/coordrun/plan/worker_environment.h"
#include "common/base/clock.h"
#include "common/base/environment.h"

namespace coordd {

struct RunCoordinator {
  Rendezvous rendezvous;
  std::optional<CoordinatorProcess> process;  // when it was started here
  CoordinatorSetup setup;                     // with which it is started again
  // host:port by which other machines may reach it, best first; empty: rendezvous.address as it is.
  std::vector<std::string> addresses;
};

// Where coordd is told to listen: what --listen says, else "127.0.0.1:0" for workers on this
// machine and "0.0.0.0:0" for others, or the same of IPv6 where there is no IPv4. coordd itself
// picks the port, of --port-range if that is given.
absl::StatusOr<std::string> ListenAddress(const RunOptions& options, LauncherKind launcher);

// `directory`: for its secrets. UNAVAILABLE, DEADLINE_EXCEEDED and others: one sentence.
absl::StatusOr<RunCoordinator> SetUpCoordinator(const RunOptions& options, const RunPlan& plan,
                                                const std::string& directory,
                                                const Environment& environment, Clock& clock);

// Whether what is at a named address may be a coordd that speaks as this run does. What no waiting
// mends is said once, and not by each worker: FAILED_PRECONDITION, UNAUTHENTICATED, as
// ProbeCoordinator. Workers of other hosts may see what this one does not, and coordd may be on its
// way up: the rest is theirs to find out.
absl::Status CheckNamed(const Rendezvous& rendezvous, Clock& clock);

// Starts it again where it was. Statuses: as StartCoordinator.
absl::Status RestartCoordinator(const RunOptions& options, const Environment& environment,
                                Clock& clock, RunCoordinator* coordinator);

// The name of the job in this run.
std::string JobName(const RunOptions& options, const Environment& environment);

// Token file and certificates of --coordinator, or that coordd is to be given, which each worker
// would refuse. INVALID_ARGUMENT: names the file, what was found and what was expected.
absl::Status CheckCredentials(const RunOptions& options, const Environment& environment);

}  // namespace coordd
