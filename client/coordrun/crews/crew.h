// The workers of a run, however they are started: the seam between what coordrun decides and the
// ways to start processes (here, through ssh, through srun, ...). (io)
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/coordrun/checks/preflight.h"
#include "client/coordrun/plan/output.h"
#include "client/coordrun/plan/run_state.h"

namespace coordd {

// What a crew tells, from within Start and Handle. A worker is named by its index: 0 for the first
// one of this run, whatever its rank.
class CrewEvents {
 public:
  virtual ~CrewEvents() = default;
  // `host`: empty for this machine. `launch`: its COORDD_LAUNCH_ID; empty: none.
  virtual void WorkerStarted(int32_t worker, const std::string& host, pid_t pid,
                             const std::string& launch) = 0;
  virtual void WorkerSaid(int32_t worker, Stream stream, const OutputPiece& piece) = 0;
  // Once for each start.
  virtual void WorkerEnded(int32_t worker, const ProcessEnd& end) = 0;
  // A sentence for the user about a host or a launcher.
  virtual void Notice(absl::string_view sentence) = 0;
};

// One owner, one thread. Never blocks but for milliseconds. Ends nothing when it is destroyed.
class Crew {
 public:
  virtual ~Crew() = default;

  // Begins to make sure of the hosts: after it, Handle is called until ready() or a failure().
  virtual absl::Status Connect(absl::Time /*now*/) { return absl::OkStatus(); }
  virtual bool ready() const { return true; }
  // Why the run cannot begin, one sentence for each host.
  virtual absl::Status failure() const { return absl::OkStatus(); }
  // The hosts that have not answered yet, when the time for it is over.
  virtual std::string Missing() const { return ""; }

  // Whether the run can do without the hosts of whom failure() and Missing() speak, since the
  // others have `least` workers: then it is ready(), Start tells that the workers of those hosts
  // have ended, and Restart may try them again. `silence`: what to say of those that have not
  // answered.
  virtual bool SetAside(int32_t /*least*/, absl::string_view /*silence*/) { return false; }

  // What its hosts have said, for the preflight. REQUIRES: ready().
  virtual std::vector<HostReport> reports() const { return {}; }

  // NOT_FOUND, PERMISSION_DENIED: the command cannot be run. REQUIRES: ready().
  virtual absl::Status Start(CrewEvents& events) = 0;

  // Starts a worker again that has ended; WorkerStarted and WorkerEnded follow once more, at once
  // or later. What the first one's descendants still write is dropped. UNAVAILABLE: its host is
  // gone.
  virtual absl::Status Restart(int32_t /*worker*/, CrewEvents& /*events*/) {
    return absl::UnimplementedError("this launcher does not start workers again");
  }
  // The worker's host is gone: what waits for it there ends with it, unless it is started again.
  virtual void Release(int32_t /*worker*/) {}
  // Nobody is started any more: whatever waits for that on other hosts ends with its workers.
  virtual void Finish() {}

  // Appends what to wait for; the same number of entries each time after Start.
  virtual void Await(std::vector<pollfd>& fds) = 0;
  // With what Await appended, after poll.
  virtual void Handle(absl::Span<const pollfd> fds, absl::Time now, CrewEvents& events) = 0;
  // When Handle has something to do that no descriptor tells.
  virtual absl::Time NextDeadline() const { return absl::InfiniteFuture(); }

  // To every worker that is alive.
  virtual void Signal(int signal, absl::Time now) = 0;
  // To one of them, if it is alive.
  virtual void SignalOne(int32_t /*worker*/, int /*signal*/) {}
  // Whether all that the workers wrote has been told.
  virtual bool drained() const = 0;
  // Kills and collects whatever it has started. Blocks up to a second.
  virtual void KillAll() = 0;
};

}  // namespace coordd
