// Tells a process from the children that it forks: threads do not survive fork(), so nothing of a
// worker works in a child.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"

namespace coordd {

// Thread-safe: constant after construction. Remembers the process that made it, by how many forks
// deep that is: asking for the process id would be a system call for each tensor.
class ForkGuard {
 public:
  ForkGuard() : depth_(Depth()) {}

  // True in a process forked from the one that made this. Objects then neither lock nor join.
  bool InChild() const { return depth_in_process.load(std::memory_order_relaxed) != depth_; }
  // FAILED_PRECONDITION in a child: what happened and what to do instead.
  absl::Status Check() const;

 private:
  // How many forks lie between this process and the one in which this was called first.
  static int64_t Depth();

  static inline std::atomic<int64_t> depth_in_process = 0;
  const int64_t depth_;
};

}  // namespace coordd
