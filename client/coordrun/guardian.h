// Cleans up behind a coordrun that was killed with SIGKILL, which no process can act upon itself: a
// second process that waits for the first one's death at a pipe. (io)
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/coordrun/unique_fd.h"

namespace coordd {

// One owner, one thread.
class Guardian {
 public:
  // Forks. When this process ends in any way, the guardian kills the process groups that were
  // watched and not yet forgotten, and removes `directory`. REQUIRES: the process has one thread.
  static absl::StatusOr<std::unique_ptr<Guardian>> Start(const std::string& directory);
  // Lets the guardian do its work, which by then should be the directory alone, and waits for it.
  ~Guardian();

  pid_t pid() const { return pid_; }
  void Watch(pid_t group) { Tell(group, true); }
  void Forget(pid_t group) { Tell(group, false); }

 private:
  Guardian(pid_t pid, UniqueFd pipe) : pid_(pid), pipe_(std::move(pipe)) {}
  void Tell(pid_t group, bool watch);

  const pid_t pid_;
  UniqueFd pipe_;
};

}  // namespace coordd
