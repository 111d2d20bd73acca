// Prometheus's file service discovery: the same targets as /v1/targets, in a file. (io)
#pragma once

#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace coordd {

class Coordinator;

// What Prometheus reads, whole or not at all. An error names --prometheus-file-sd and the file.
absl::Status WriteTargets(const std::string& path, const std::string& targets);

// Writes from a thread of its own, so that a slow disk never holds up the coordinator. The file is
// replaced whole, and only when its contents change; a failure is logged and tried again at the
// next change.
class TargetsFile {
 public:
  // Starts the thread "targets-file", which writes at once. `coordinator` outlives this.
  TargetsFile(std::string path, Coordinator& coordinator, Clock& clock);
  ~TargetsFile();

  // Members may have changed. Thread-safe; never blocks.
  void Nudge();

 private:
  struct Change {};
  void Run();
  // False: it is to end.
  bool Rest(absl::Duration time);

  // Constant after construction.
  const std::string path_;
  Coordinator& coordinator_;
  Clock& clock_;

  // Thread-safe by itself. One is enough: a change that comes while one waits is seen with it.
  BoundedQueue<Change> changes_;

  // Touched by the thread only.
  std::string written_;

  // Guarded by mu_.
  Mutex mu_;
  CondVar ends_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;
};

}  // namespace coordd
