// One run: starts coordd and the workers, moves their output, ends them, and says how it went. The
// shell around RunState. (io)
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/coordrun/coordinator/exit_reporter.h"
#include "client/coordrun/crews/crew.h"
#include "client/coordrun/plan/early_look.h"
#include "client/coordrun/plan/output.h"
#include "client/coordrun/plan/report.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/run_plan.h"
#include "client/coordrun/plan/run_state.h"
#include "client/coordrun/process/line_splitter.h"
#include "client/coordrun/program/coordinator_keeper.h"
#include "client/coordrun/program/host_watch.h"
#include "common/base/clock.h"
#include "common/base/environment.h"

namespace coordd {

// One thread: a poll loop. REQUIRES: it is the only thread of the process when Run begins (gRPC's
// own come up once the workers have been started), under RunSupervised: what it leaves behind is
// ended there.
class Launcher : private CrewEvents {
 public:
  // `options` and `plan` are valid, agree on np and outlive this object. `directory` exists, is for
  // this run's secrets, and is removed by whoever has made it.
  Launcher(const RunOptions& options, const RunPlan& plan, std::string directory,
           Environment environment, Clock& clock);

  // Blocks until everything that it started has ended. Returns coordrun's exit status: RunState's;
  // 126 or 127 when the command cannot be run; 2 when the named coordd speaks another way; 1 when
  // the run cannot be prepared.
  int Run();

 private:
  // CrewEvents.
  void WorkerStarted(int32_t worker, const std::string& host, pid_t pid,
                     const std::string& launch) override;
  void WorkerSaid(int32_t worker, Stream stream, const OutputPiece& piece) override;
  void WorkerEnded(int32_t worker, const ProcessEnd& end) override;
  void Notice(absl::string_view sentence) override;

  absl::Status Prepare();
  // CANCELLED: by a signal, before anything was started.
  absl::Status Interrupted() const;
  // Until coordd is there, in a pod that may have come before it.
  absl::Status AwaitCoordinator();
  absl::Status ConnectCrew();
  absl::Status Check();
  absl::Status StartWorkers();
  // From now on coordd hears how workers end.
  void StartReporter();
  std::deque<std::string> LastSaid(int32_t worker) const;
  void ReportExit(int32_t worker, const ProcessEnd& end);
  void RunWorkers();
  void DrainWorkers();
  void Finish();
  void KeepCoordinator();
  void StopCoordinator();
  void KillEverything();

  // Waits until something happens or `until` passes, and handles what has happened.
  void Turn(absl::Time until);
  // The last lines of the workers, as they are now, to the report.
  void CopyTails();
  // Asks coordd; what it says is added to the report, and who failed first is taken from it.
  // Nothing: it does not answer.
  std::optional<v1::ServerState> AskCoordinator(absl::Duration timeout);
  // Judges the workers that have ended since, and whether they had been asked to leave.
  void JudgeEnds();
  void TellEnd(int32_t worker, const ProcessEnd& end, bool drained);
  // Whether coordd lets no generation follow: then the run is being ended.
  bool JobIsOver(const std::optional<v1::ServerState>& view);
  // Asks coordd to let these leave; the workers of whom it knows that they will, or that it would
  // refuse to let them.
  std::set<int32_t> Drain(const std::vector<int32_t>& workers);
  // Some workers have ended well, others run: whether those can.
  void RestartWorkers();
  // What a discovery script has said.
  void TakeHosts(const absl::StatusOr<std::vector<HostSlots>>& hosts);
  std::set<int32_t> EmptySlots(const std::vector<HostSlots>& hosts) const;
  void LookForEarlyExit(absl::Time now);
  void RemoveMarker();

  static constexpr size_t kTailLines = 5;

  // Constant after construction.
  const RunOptions& options_;
  const RunPlan& plan_;
  const std::string directory_;
  const Environment environment_;
  Clock& clock_;
  const absl::Time start_;

  Output output_;
  RunReport report_;
  CoordinatorKeeper keeper_;
  HostWatch hosts_;
  OwnedFd signals_;
  std::unique_ptr<Crew> crew_;
  std::unique_ptr<RunState> state_;
  std::unique_ptr<ExitReporter> reporter_;             // null: nobody is told
  std::vector<std::pair<int32_t, ProcessEnd>> ended_;  // since the last JudgeEnds
  std::vector<TailLines> tails_;                       // of each worker
  std::vector<std::string> launches_;                  // likewise: what it is called, for coordd
  int interrupted_by_ = 0;  // a signal that came before the workers were started
  std::string marker_;      // a file in the working directory, while hosts are looked at
  EarlyLook early_look_;
};

}  // namespace coordd
