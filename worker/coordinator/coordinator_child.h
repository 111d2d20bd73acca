// A coordd that this process starts for its job, when nobody has named one. (io)
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/environment.h"
#include "common/grpc/tls.h"
#include "common/net/address.h"

namespace coordd {

struct CoordinatorChildOptions {
  std::string program;    // as FindCoordinatorProgram
  HostPort listen;        // port 0: of `ports`, else any
  PortRange ports;        // {0, 0}: any
  TlsFiles tls;           // coordd's side
  std::string directory;  // removed at its end: private, holds `tls`
};

// The coordd beside this library (../bin/coordd, ./coordd), beside this program, or in the PATH of
// `environment`. NOT_FOUND: says where it was looked for.
absl::StatusOr<std::string> FindCoordinatorProgram(const Environment& environment);

// A child process that outlives a killed parent by seconds only: coordd watches the parent (a
// pidfd) and ends when it has gone and the workers have left. It is in a process group of its own,
// so that Ctrl-C reaches the workers and lets them say goodbye first.
//
// One owner, one thread at a time.
class CoordinatorChild {
 public:
  // Blocks until coordd listens. UNAVAILABLE, DEADLINE_EXCEEDED: why it does not; what coordd
  // itself has said is on stderr.
  static absl::StatusOr<std::unique_ptr<CoordinatorChild>> Start(
      const CoordinatorChildOptions& options, absl::Time deadline, Clock& clock);
  // Leaves coordd to itself.
  ~CoordinatorChild() = default;
  CoordinatorChild(const CoordinatorChild&) = delete;
  CoordinatorChild& operator=(const CoordinatorChild&) = delete;

  HostPort listen() const { return listen_; }
  const std::string& http() const { return http_; }
  pid_t pid() const { return pid_; }
  // False once it has ended, which is then collected.
  bool Alive();
  // Tells coordd that the job is over and waits until its workers have left and it has ended;
  // `timeout` at most.
  void Finish(absl::Duration timeout, Clock& clock);

 private:
  explicit CoordinatorChild(pid_t pid) : pid_(pid) {}

  const pid_t pid_;
  HostPort listen_;
  std::string http_;
  bool collected_ = false;
};

}  // namespace coordd
