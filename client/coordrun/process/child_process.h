// A process that coordrun starts: in a process group of its own, with its input and output in
// pipes, and dead as soon as coordrun is. (io)
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/coordrun/process/process_end.h"
#include "common/base/environment.h"
#include "common/base/owned_fd.h"

namespace coordd {

struct ChildRequest {
  std::vector<std::string> command;  // the program is searched in PATH
  Environment environment;
  std::string directory = "";   // where it starts; empty: here
  bool input = false;           // whether it reads what is written to in(); else its stdin is empty
  bool inherits_input = false;  // or, without `input`, that of this process
  // Stays open in the child under its own number; -1: none. Everything else is closed but 0, 1 and
  // 2 (pipes).
  int inherited_fd = -1;
};

// Movable; one owner. Does not end the process when it is destroyed.
class ChildProcess {
 public:
  // NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE: names the program and why it cannot be run.
  // FAILED_PRECONDITION: the directory is not there.
  // REQUIRES: the calling thread blocks the signals that the process waits for; the child gets none
  // blocked. (Other threads do not matter: the child does nothing but what a signal handler may.)
  static absl::StatusOr<ChildProcess> Start(const ChildRequest& request);

  pid_t pid() const { return pid_; }
  // Readable when the process has ended.
  int pidfd() const { return pidfd_.get(); }
  OwnedFd& in() { return in_; }    // non-blocking write end of its input; closed without one
  OwnedFd& out() { return out_; }  // non-blocking read ends of its output
  OwnedFd& err() { return err_; }
  bool out_open() const { return out_.valid(); }
  bool err_open() const { return err_.valid(); }
  bool reaped() const { return reaped_; }

  // To all processes of its group. Nothing once reaped.
  void Signal(int signal) const;
  // When the process has ended: kills what is left of its group, then collects it. Nothing: it
  // still runs.
  std::optional<ProcessEnd> Reap();

 private:
  ChildProcess(pid_t pid, OwnedFd pidfd, OwnedFd in, OwnedFd out, OwnedFd err)
      : pid_(pid),
        pidfd_(std::move(pidfd)),
        in_(std::move(in)),
        out_(std::move(out)),
        err_(std::move(err)) {}

  pid_t pid_;
  OwnedFd pidfd_, in_, out_, err_;
  bool reaped_ = false;
};

// From now on, orphans of children become children of this process: nothing that a worker leaves
// behind gets out of reach.
void AdoptOrphans();
// Kills and collects all children, adopted ones too, but `spared`; bounded by 4 s. Needs
// /proc/PID/task/PID/children; without it only what is dead already is collected.
// Async-signal-safe.
void EndChildrenBut(pid_t spared);

}  // namespace coordd
