// Finds the coordd of a job for which nobody has named one, or starts it: the shell around
// common/launch/auto_coordinator.h. (io)
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/grpc/tls.h"
#include "common/net/address.h"
#include "worker/api/worker_options.h"

namespace coordd {

// How coordd is reached.
struct CoordinatorAccess {
  HostPort address;
  TlsFiles tls;
  std::string token;
};

// A coordd that this process starts belongs to the process and not to a worker: it stays for the
// next worker that the process starts (init, shutdown, init), and ends with the process, a minute
// after its last worker, or at the process's exit once the others have left (4 s at most).
//
// Blocks until there is one, `deadline` at most. Statuses: FAILED_PRECONDITION as
// PlanAutoCoordinator; NOT_FOUND no program coordd; DEADLINE_EXCEEDED no other process has started
// one: says where it was looked for; UNAVAILABLE.
absl::StatusOr<CoordinatorAccess> FindOrStartCoordinator(const WorkerOptions& options,
                                                         absl::Time deadline, Clock& clock);

}  // namespace coordd
