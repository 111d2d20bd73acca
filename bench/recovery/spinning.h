// Processes that want a core each: a machine with too much to do. (io)
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace coordd::bench {

// One owner. They end with it, and with this process.
class SpinningProcesses {
 public:
  // UNAVAILABLE: one cannot be started.
  static absl::StatusOr<SpinningProcesses> Start(int32_t count);
  ~SpinningProcesses();
  SpinningProcesses(SpinningProcesses&& other) noexcept = default;
  SpinningProcesses& operator=(SpinningProcesses&&) = delete;

 private:
  SpinningProcesses() = default;

  std::vector<pid_t> pids_;
};

}  // namespace coordd::bench
