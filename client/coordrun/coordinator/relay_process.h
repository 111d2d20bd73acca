// The relay of this node: its workers speak to coordd through it, as one session. (io)
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/process/child_process.h"
#include "common/base/clock.h"
#include "common/base/environment.h"
#include "common/base/owned_fd.h"

namespace coordd {

// From so many ranks on, the nodes of a job have relays, unless --node-sessions says otherwise:
// there a round takes 10 ms of coordd's CPU without them, and a sixth of it with them
// (bench/results.md). Below, a process more on each node and a longer way are not worth it.
inline constexpr int32_t kRelaysFrom = 512;

// Whether a node with `local` of the `np` workers of a run gets one. REQUIRES: options are valid.
bool WantsRelay(const RunOptions& options, int32_t np, int32_t local);

// For the launcher's agent on a node, or its own node. One owner, one thread.
class RelayProcess {
 public:
  // At a socket in `directory`, however long the name of that is. `environment`: a worker's, which
  // says where coordd is. The relay has a certificate of its own where node.crt and node.key lie
  // beside the worker's, else the worker's.
  RelayProcess(const std::string& directory, Environment environment);

  // Starts the relay, which takes workers when this returns. UNAVAILABLE, NOT_FOUND: why not, one
  // sentence; the workers then speak to coordd themselves. REQUIRES: the relay does not run.
  absl::Status Start(Clock& clock);
  // COORDD_NODE_SESSION of the workers.
  const std::string& address() const { return address_; }

  // Readable when it has ended; -1: it has.
  int pidfd() const;
  // When it has ended: collects it, and says for the user what that means. It is started again
  // after a pause, twice as long each time until it has lived for a minute; workers that come, or
  // come back, find it there.
  std::string Ended(absl::Time now);
  // Infinite: it runs, or cannot be started.
  absl::Time starts_again() const { return starts_again_; }
  // REQUIRES: starts_again() has come. Does not wait until it takes workers. The error's sentence
  // says why it will not be tried again.
  absl::Status StartAgain(absl::Time now);
  // Ends it and waits for that, up to a second.
  void Kill();

 private:
  absl::StatusOr<ChildProcess> Begin(int ready_fd);

  // Open where its name is too long for a socket's path.
  OwnedFd directory_;
  const std::string address_;
  const Environment environment_;
  std::optional<ChildProcess> process_;
  absl::Time began_, starts_again_ = absl::InfiniteFuture();
  absl::Duration pause_ = absl::ZeroDuration();
};

}  // namespace coordd
