// One run: starts coordd and the workers, moves their output, ends them, and says how it went. The
// shell around RunState. (io)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/coordctl/target.h"
#include "client/coordrun/child_process.h"
#include "client/coordrun/coordinator_process.h"
#include "client/coordrun/guardian.h"
#include "client/coordrun/line_splitter.h"
#include "client/coordrun/output.h"
#include "client/coordrun/report.h"
#include "client/coordrun/run_options.h"
#include "client/coordrun/run_state.h"
#include "client/coordrun/worker_environment.h"
#include "common/clock.h"
#include "common/environment.h"

namespace coordd {

// One thread: a poll loop. REQUIRES: it is the only thread of the process until Run returns (gRPC's
// own come up when a failed run asks coordd for its view, after the last fork).
class Launcher {
 public:
  // `options` is valid and outlives this object.
  Launcher(const RunOptions& options, Environment environment, Clock& clock);

  // Blocks until everything that it started has ended. Returns coordrun's exit status: RunState's;
  // 126 or 127 when the command cannot be run; 1 when the run cannot be prepared.
  int Run();

 private:
  struct Worker {
    ChildProcess process;
    LineSplitter out_lines, err_lines;
    TailLines tail;
  };

  absl::Status Prepare();
  absl::Status PrepareCoordinator();
  absl::Status StartWorkers();
  void RunWorkers();
  void DrainWorkers();
  void KeepCoordinator();
  void StopCoordinator();
  void KillEverything();

  // Waits until something happens or `until` passes, and handles what has happened.
  void Turn(absl::Time until);
  void ReadSignals(absl::Time now);
  void ReadWorker(int32_t local_rank, bool out, bool err);
  void ReapWorker(int32_t local_rank, absl::Time now);
  void ReadCoordinator();
  void ReapCoordinator(absl::Time now);
  void SendSignals();
  bool DrainedWorkers() const;
  std::vector<std::string> CoordinatorView() const;
  void AddToView(std::vector<std::string> sentences);

  // Constant after construction.
  const RunOptions& options_;
  const Environment environment_;
  Clock& clock_;
  const absl::Time start_;

  Output output_;
  std::unique_ptr<Guardian> guardian_;
  UniqueFd signals_;
  std::string directory_;
  Rendezvous rendezvous_;
  std::optional<CoordinatorProcess> coordinator_;
  LineSplitter coordinator_out_, coordinator_err_;
  std::vector<Worker> workers_;
  std::unique_ptr<RunState> state_;
  RunReport report_;
  bool workers_needed_coordinator_ = true;
};

}  // namespace coordd
