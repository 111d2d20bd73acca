// Tells a process from the children that it forks: threads do not survive fork(), so nothing of a
// worker works in a child.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include "absl/status/status.h"

namespace coordd {

// Thread-safe: constant after construction. Remembers the process that made it.
class ForkGuard {
 public:
  ForkGuard() : pid_(getpid()) {}

  // True in a process forked from the one that made this. Objects then neither lock nor join.
  bool InChild() const { return getpid() != pid_; }
  // FAILED_PRECONDITION in a child: what happened and what to do instead.
  absl::Status Check() const;

 private:
  const pid_t pid_;
};

}  // namespace coordd
