// The course of a run: who has ended how, whom to signal when, and what it comes to. PURE
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/coordrun/plan/restart_budget.h"
#include "client/coordrun/plan/run_blame.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/process/process_end.h"

namespace coordd {

//   running --failure--> lingering --linger--> terminating --grace--> killing --> all have ended
//   running --signal, timeout--------------------^   second signal -------^
//
// In an elastic run (RunOptions::min_np) a worker that fails is *lost* as long as enough others
// have not failed, and the run goes on; where hosts come and go, as long as anybody is alive. Not
// thread-safe: one owner. `now` must not decrease.
class RunState {
 public:
  struct Worker {
    std::optional<ProcessEnd> end;
    absl::Duration ran;
    absl::Time started;
    int32_t restarts = 0;
    absl::Time restart_at = absl::InfiniteFuture();
    bool ended_by_itself = false;  // before coordrun began to end the run, or this worker
    int32_t strikes = 0;  // failures in a row, each soon after a start: they double the wait
    // For a run whose hosts come and go. `away`: the worker's slot is not there, so that it is not
    // started, and its end is none of the run's. `late`: it was not among the first.
    bool away = false, late = false;
    bool comes_back = false;  // its slot is there again before it has ended
    bool unused = false;      // its slot is there, and it has not been started since
    bool drained = false;     // it was asked to leave; it is away from then on
    absl::Time term_at = absl::InfiniteFuture();
    absl::Time kill_at = absl::InfiniteFuture();
  };

  RunState(const RunOptions& options, absl::Time start);

  void WorkerEnded(int32_t local_rank, const ProcessEnd& end, absl::Time now);
  // A worker has ended that had been asked to leave the job, and of which coordd knows that.
  // However it ended it is no failure, and it is not started again before its slot comes anew.
  void DrainedWorkerEnded(int32_t local_rank, const ProcessEnd& end, absl::Time now);
  // One of TakeRestarts has been started.
  void WorkerRestarted(int32_t local_rank, absl::Time now);
  // One of them could not be: it stays lost, or is tried again where hosts come and go.
  void RestartFailed(int32_t local_rank, absl::Time now);
  // Slots of hosts that come and go (RunOptions::discovery_script): room for one more worker, which
  // is away; it has a host now, and is to be started; it has none any more, and is told to end, if
  // it has not ended by itself within `leaves_within`.
  void AddSlot(absl::Time now);
  void SlotCame(int32_t local_rank, absl::Time now);
  void SlotWent(int32_t local_rank, absl::Time now,
                absl::Duration leaves_within = absl::ZeroDuration());
  // The coordd of this run has ended while workers need it.
  void CoordinatorEnded(const ProcessEnd& end, absl::Time now);
  // coordd says that no generation follows although members were to go on: whoever is started from
  // now on would begin from nothing. `why` completes "no generation of the job follows: ".
  void JobEnded(const std::string& why, absl::Time now);
  // The program has come to its end without those who are alive: they are ended, and count as lost.
  void Finish(absl::Time now);
  // A signal of a user or a batch system has come; SIGINT, SIGTERM, SIGHUP or SIGQUIT end the run,
  // any other is just passed on. In a pod of an elastic job SIGTERM asks the workers to leave, for
  // which they have --drain-grace, and the others go on: that is no failure.
  void SignalReceived(int signal, absl::Time now);
  // The worker has ended well, but so that the others cannot go on: `reason` completes "rank 2
  // ...". Counts as the first failure, unless there is one.
  void Blame(int32_t local_rank, const std::string& reason, absl::Time now);
  // coordd has seen that this one failed first, and what its program has said, if it has: that
  // counts more than the order in which processes have ended. Changes who the first failure is, if
  // there is one; `local_rank` may not have ended yet. Not of a run that goes on without others.
  void FailedFirst(int32_t local_rank, const std::string& says);
  void Tick(absl::Time now);

  // When Tick has something to do next.
  absl::Time NextDeadline() const;
  // Signals to send to every worker that is alive, in this order; empty afterwards.
  std::vector<int> TakeSignals();
  // The signals that are to be sent to single workers.
  std::vector<std::pair<int32_t, int>> TakeSingleSignals();
  // The workers that are to be started again now; each is then WorkerRestarted, or stays lost.
  std::vector<int32_t> TakeRestarts(absl::Time now);

  bool all_ended() const { return alive_ == 0 && !RestartsAreDue() && !awaits_hosts(); }
  // Nobody is alive, since the hosts of all are gone: others are waited for, --elastic-timeout.
  bool awaits_hosts() const { return hosts_by_ != absl::InfiniteFuture(); }
  bool ending() const { return phase_ != Phase::kRunning; }
  bool timed_out() const { return timed_out_; }
  bool interrupted() const { return interrupt_ != 0; }
  // A pod was asked to end, and its workers have left in order.
  bool has_drained() const;
  // Who failed before the run was being ended, and so is its cause (RunBlame).
  static constexpr absl::Duration kBlameWindow = RunBlame::kWindow;
  bool blame_is_final() const { return blame_.is_final() || all_ended(); }
  std::optional<int32_t> first_failure() const { return blame_.worker(); }
  // What the program of the first failure has said, as "ValueError: bad batch"; empty: nothing.
  const std::string& failure_says() const { return blame_.says(); }
  // Without whom the run went on, in the order of their ends.
  const std::vector<int32_t>& lost() const { return losses_.without; }
  // Losses after which somebody was started in the same place.
  int32_t repaired() const { return losses_.repaired; }
  int32_t alive() const { return alive_; }
  size_t drained_workers() const;  // how many were asked to leave
  bool some_are_through() const;   // have ended well
  // Some have ended well, and all that are alive were started later than the first.
  bool only_restarted_are_alive() const;
  // Nobody has ended well, and nobody is to blame: hosts came and went, or workers were asked to
  // leave, until none was left.
  bool deserted() const;
  // Blame's; empty: the first failure's end tells.
  const std::string& blame_reason() const { return blame_.reason(); }
  const std::string& job_end() const { return job_end_; }  // JobEnded's; empty: it has not
  const std::optional<ProcessEnd>& coordinator_end() const { return coordinator_end_; }
  const std::vector<Worker>& workers() const { return workers_; }

  // The status with which coordrun exits: the first failure's; 128 + signal when one ended the run;
  // 124 after the timeout.
  int exit_status() const;

 private:
  enum class Phase { kRunning, kLingering, kTerminating, kKilling };

  void Enter(Phase phase, absl::Time now);
  bool EnoughAreLeft() const;
  bool RestartsAreDue() const;
  // Whether nobody is left since hosts are gone, and others may come.
  bool HostsMayCome() const;
  void NoteNobodyIsLeft(absl::Time now);
  // SIGTERM, if it is due.
  void Terminate(int32_t local_rank, absl::Time now);
  void PlanRestart(Worker& worker, absl::Time now);
  // The program comes to its end, or is being ended: nobody is started any more.
  void CancelRestarts();

  // Constant after construction.
  const int32_t min_np_;
  const bool hosts_change_;
  struct Patience {
    absl::Duration linger, grace, elastic, drain;
  };
  const Patience patience_;
  // SIGTERM asks the workers to leave, and the run ends with this once they have; nullopt: it ends
  // them.
  const std::optional<int> drained_status_;
  const absl::Time timeout_;

  Phase phase_ = Phase::kRunning;
  absl::Time phase_end_ = absl::InfiniteFuture();
  std::vector<Worker> workers_;
  int32_t alive_;
  std::vector<int> signals_;
  std::vector<std::pair<int32_t, int>> single_signals_;
  RestartBudget restarts_;
  struct Losses {
    std::vector<int32_t> without;  // the run goes on, in the order of their ends
    int32_t repaired = 0;          // after which somebody was started in the same place
  };
  Losses losses_;
  RunBlame blame_;
  std::string job_end_;
  std::optional<ProcessEnd> coordinator_end_;
  int interrupt_ = 0;
  bool timed_out_ = false;
  absl::Time hosts_by_ = absl::InfiniteFuture();
};

}  // namespace coordd
