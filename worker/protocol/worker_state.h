// Everything that a worker decides in one generation: what it reports to coordd, what it launches,
// what fails and with which words. No thread, lock, clock or socket.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "worker/base/shared_spec.h"
#include "worker/protocol/arriving_membership.h"
#include "worker/protocol/coordinator_session.h"
#include "worker/protocol/heartbeat_message.h"
#include "worker/protocol/pending_tensors.h"
#include "worker/protocol/requested_trace.h"
#include "worker/protocol/tensor_traits.h"
#include "worker/protocol/turn.h"
#include "worker/protocol/worker_events.h"
#include "worker/protocol/worker_generation.h"
#include "worker/protocol/worker_leaving.h"
#include "worker/protocol/worker_succession.h"

namespace coordd {

struct WorkerStateOptions {
  Epoch epoch;
  Generation generation;
  Rank rank;
  int32_t size = 1;
  absl::Duration heartbeat_interval = absl::Seconds(2);
  absl::Duration lease = absl::Seconds(10);
  int64_t received_sequence = 0;  // of the Membership, and of the sets behind it
  int64_t slots = 0;              // Membership.slots
  bool named_sets = false;        // Membership.named_sets
  v1::ProcessSets process_sets;   // of the generation before. REQUIRES: valid
  OnFailure on_failure = OnFailure::kEnd;

  // The cluster id of a coordd that may be started again on its state, so that this rank resumes
  // its session; empty: it remembers nothing, and a lost connection is the end of the generation.
  std::string cluster_id;
  int64_t session = 0;                                 // Membership.session
  v1::Join join;                                       // what this worker had joined with
  absl::Duration resume_timeout = absl::Seconds(300);  // without coordd
  int32_t coordinators = 1;  // addresses at which it may come back: each try is for the next one
  uint64_t seed = 1;         // of the jitter between attempts
};

CoordinatorSession::Terms TermsOf(const WorkerStateOptions& options);

// PURE; `now` must not decrease between calls. Not thread-safe: Control calls it under its lock,
// from the control thread (Tick, and what coordd says) and from those that submit or have ended a
// batch.
//
// A tensor is unreported (until the end of the turn), reported, perhaps withdrawn (its deadline has
// passed or the worker leaves, and coordd has been asked), then planned or failed. A rank must not
// give up a tensor by itself once it is reported: coordd may have planned it a moment ago, and the
// other ranks then wait for this one. So a withdrawal is a question, and coordd's answer - a
// failure or a plan, whichever it has sent - is final.
//
// Names are unique per process set. A rank that has submitted a join has no more data until the
// join ends on all ranks: plans may then name tensors that it has not submitted, with their specs.
//
// Unless on_failure is kEnd, a generation that has lost a member is followed by another: everything
// pending fails, what executes is aborted, and when nothing executes any more this rank reports
// that (RecoveryReport) and waits for its place in the next one. What was submitted for the old one
// fails with the reason of its end. With kContinue nothing fails: what is pending stays, what
// executes comes back, and all of it is reported again in the next generation, except for batches
// of which another rank has given its program the result. Those this rank holds, too, and coordd
// names them.
//
// When the connection is lost, and coordd has state that outlives it, the rank is detached: what
// was planned executes, scheduled lanes go on, what is new waits. It connects again and again, says
// how far it has come, hears what it has missed, and reports anew what is without an answer. If its
// generation is over by then, it says that, and hears of the next one, or that it has to report
// (again) what became of the last.
//
// Implemented in worker_state.cc (what comes in while a generation lives, and time) and
// worker_state_changes.cc (how it ends, what follows, lost sessions, the goodbye).
class WorkerState {
 public:
  WorkerState(const WorkerStateOptions& options, absl::Time now);

  // Any input leads to a valid state; what breaks the protocol ends the generation with INTERNAL.
  void Step(WorkerEvent in, absl::Time now, std::vector<WorkerEffect>& out);
  // The end of a turn: sends what has gathered and what is due by `now`.
  void Tick(absl::Time now, std::vector<WorkerEffect>& out);
  absl::Time NextDeadline() const;
  // The part of it that a submission can bring nearer, apart from the tensors' own deadlines.
  absl::Time NextScheduleDeadline() const;
  // Whether a thread of the program waits for one of these, asked by the last Tick; of one that is,
  // ProgramWaits tells.
  const std::vector<TensorId>& question() const { return generation_.schedules.question(); }
  // Whether Tick has something to do before the NextDeadline that was told before the last Step,
  // besides what that Step itself has named a deadline for.
  bool turn_due() const {
    return (has_report() && attached() && !succession_.expects_next()) ||
           (leaving_.leaves() && !leaving_.stopped()) || report_is_due() ||
           (succession_.holds_abort() && generation_.launched.empty());
  }
  // Whether it has a session; false: its connection to coordd is lost, and it looks for another.
  bool attached() const { return session_.attached(); }
  // The goodbye is said, or forced: Stopped was given, nothing will follow.
  bool stopped() const { return leaving_.stopped(); }

  // The process sets that the ranks have asked for.
  std::vector<DefineProcessSet> process_sets() const { return generation_.process_sets.AskedFor(); }
  // OK while the generation is alive.
  const absl::Status& status() const { return succession_.end(); }
  int64_t pending_tensors() const;
  int64_t unreported_tensors() const { return static_cast<int64_t>(pending_.unreported()); }
  int64_t executing_batches() const { return static_cast<int64_t>(generation_.launched.size()); }
  // How late this rank comes to collectives, as coordd has told last.
  absl::Duration arrival_lag() const { return session_.heartbeats().arrival_lag(); }
  // coordd asks where the program is. Once.
  bool TakeStackWanted() { return session_.heartbeats().TakeStackWanted() && !leaving_.leaves(); }
  // How late the last heartbeat was sent.
  absl::Duration heartbeat_lag() const { return session_.heartbeats().lag(); }

 private:
  void On(TensorsSubmitted& in, const WorkerTurn& turn);
  void On(ProcessSetAsked& in, const WorkerTurn& turn);
  void On(CoordinatorSaid& in, const WorkerTurn& turn);
  void On(StreamEnded& in, const WorkerTurn& turn);
  void On(BatchDone& in, const WorkerTurn& turn);
  void On(ProgramWaits& in, const WorkerTurn& turn);
  void On(ConnectFailed& in, const WorkerTurn& turn);
  void On(MembersMayChange& in, const WorkerTurn& turn);
  void On(DrainAsked& in, const WorkerTurn& turn);
  void On(LeaveRequested& in, const WorkerTurn& turn);
  void On(StopForced& in, const WorkerTurn& turn);

  // --- what coordd says in a generation ---
  // Whether the message is of the session at hand; adopts the epoch of a coordd that was started
  // again.
  bool IsOfThisSession(const CoordinatorSaid& in, const WorkerTurn& turn);
  void OnGenerationMessage(const v1::CoordinatorMessage& message, const WorkerTurn& turn);
  void OnPlan(const v1::CollectivePlan& plan, const WorkerTurn& turn);
  void OnFailures(const v1::TensorFailures& failures, const WorkerTurn& turn);
  void OnProcessSetChange(const v1::ProcessSetChange& change, const WorkerTurn& turn);
  void OnSchedule(const v1::Schedule& schedule, const WorkerTurn& turn);
  void OnFreeze(const v1::Freeze& freeze, const WorkerTurn& turn);
  void OnCut(const v1::Cut& cut, const WorkerTurn& turn);
  void EndForFault(const ScheduledWork::Fault& fault, const WorkerTurn& turn);
  // Whether the join is not reported before a cut: behind that there may be what came before it.
  bool JoinWaits() const;
  ScheduledWork::Context ForSchedules(const WorkerTurn& turn) {
    return {turn, pending_, generation_.launched, session_, leaving_.leaves()};
  }
  RequestedTrace::Context ForTrace(const WorkerTurn& turn) const {
    return {turn, generation_.schedules, session_};
  }

  // --- time ---
  void CheckDeadlines(const WorkerTurn& turn);
  void CheckExecuting(const WorkerTurn& turn);
  void CheckSchedules(const WorkerTurn& turn);
  void CheckVerdict(const WorkerTurn& turn);
  void CheckLease(const WorkerTurn& turn);
  void WithdrawProcessSets(const WorkerTurn& turn);
  void SendHeartbeat(const WorkerTurn& turn);
  void Report(const WorkerTurn& turn);
  bool has_report() const {
    const size_t unreported = pending_.unreported();
    return unreported > 0 && (unreported > 1 || !JoinWaits());
  }
  bool counts_lease() const {
    const bool waits = succession_.expects_next() && !leaving_.leaves();
    return (succession_.end().ok() || waits) && attached();
  }
  bool sends_heartbeats() const { return session_.can_send() && !leaving_.said_goodbye(); }
  void Send(v1::WorkerMessage message, const WorkerTurn& turn) {
    session_.Send(std::move(message), turn);
  }
  void SendAll(std::vector<v1::WorkerMessage> messages, const WorkerTurn& turn);
  void SendFailed(BatchKey batch, const std::string& tensor, absl::string_view detail,
                  std::optional<Suspect> suspect, const WorkerTurn& turn);

  // --- worker_state_changes.cc: the end of a generation ---
  absl::Status Ended(absl::string_view why,
                     absl::StatusCode code = absl::StatusCode::kAborted) const;
  void OnAbort(const v1::Abort& abort, const WorkerTurn& turn);
  // An Abort on which the members had agreed, once what was executing has ended.
  void CheckHeldAbort(const WorkerTurn& turn);
  // `abort`: also what is executing.
  void EndGeneration(absl::Status why, bool abort, const WorkerTurn& turn);
  void FailEverything(const WorkerTurn& turn);
  void ProtocolError(absl::string_view what, const WorkerTurn& turn);
  // The generation is over, and programs need not know: everything goes on in the next one.
  void Interrupt(const absl::Status& why, const WorkerTurn& turn);
  // No generation follows.
  void EndForGood(absl::Status why, const WorkerTurn& turn);
  // Nothing more can come from coordd: the end of this generation, or of waiting for the next.
  void GiveUp(absl::Status why, const WorkerTurn& turn);
  // When coordd has to have said who is to blame for a failure here.
  void AwaitVerdict(absl::Time now);

  // --- the next generation ---
  bool report_is_due() const {
    return succession_.report_is_due() && !leaving_.leaves() && generation_.launched.empty() &&
           attached();
  }
  void ReportRecovery(const WorkerTurn& turn);
  void OnNext(const v1::CoordinatorMessage& message, const WorkerTurn& turn);
  void OnMembership(const v1::CoordinatorMessage& message, const v1::ProcessSets& sets,
                    const WorkerTurn& turn);
  // Takes back what was launched and interrupted; whether that was possible.
  bool TakeAgain(SubmittedTensor& tensor, const WorkerTurn& turn);
  // Whether something was submitted for an older generation, whose end the program has to see.
  bool IsOutdated(Generation submitted_for) const {
    return ToInt(submitted_for) != 0 && submitted_for < options_.generation;
  }
  bool IsOutdated(Generation submitted_for, const TensorSpec& spec) const {
    return IsOutdated(submitted_for) && !(succession_.continues() && OutlivesGeneration(spec));
  }
  void AskForChange(const WorkerTurn& turn);
  void AskToLeave(const WorkerTurn& turn);

  // --- a lost session ---
  bool MayResume(const absl::Status& ended) const;
  void Detach(const absl::Status& why, const WorkerTurn& turn);
  void TryAgain(const WorkerTurn& turn);
  void OnResumed(const v1::Resumed& resumed, const WorkerTurn& turn);
  void SendResume(const WorkerTurn& turn);
  void ReportAnew(const WorkerTurn& turn);

  // --- the goodbye ---
  void LeaveFailing(const WorkerTurn& turn);
  void LeaveWhenDrained(const WorkerTurn& turn);
  void SayGoodbye(const WorkerTurn& turn);

  WorkerStateOptions options_;  // of the generation

  PendingTensors pending_;  // what continues stays from one generation to the next
  WorkerGeneration generation_;
  WorkerSuccession succession_;
  ArrivingMembership arriving_;
  CoordinatorSession session_;
  WorkerLeaving leaving_;
  RequestedTrace trace_;
  WorkTotals totals_;
};

}  // namespace coordd
