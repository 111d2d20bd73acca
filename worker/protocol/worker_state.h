// Everything that a worker decides in one generation: what it reports to coordd, what it launches,
// what fails and with which words. No thread, lock, clock or socket.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "worker/base/shared_spec.h"
#include "worker/protocol/coordinator_session.h"
#include "worker/protocol/goodbye.h"
#include "worker/protocol/launched_batches.h"
#include "worker/protocol/pending_tensors.h"
#include "worker/protocol/process_set_state.h"
#include "worker/protocol/received_log.h"
#include "worker/protocol/scheduled_work.h"
#include "worker/protocol/slot_table.h"
#include "worker/protocol/tensor_traits.h"
#include "worker/protocol/turn.h"
#include "worker/protocol/worker_events.h"

namespace coordd {

// Once the members have agreed on a change, what executes ends by itself, since all have launched
// it. A program that has agreed on nothing is aborted after this.
inline constexpr absl::Duration kAskedAbortWait = absl::Seconds(1);

struct WorkerStateOptions {
  Epoch epoch;
  Generation generation;
  Rank rank;
  int32_t size = 1;
  absl::Duration heartbeat_interval = absl::Seconds(2);
  absl::Duration lease = absl::Seconds(10);
  int64_t received_sequence = 0;  // of the Membership, and of the sets behind it
  int64_t slots = 0;              // Membership.slots
  v1::ProcessSets process_sets;   // of the generation before. REQUIRES: valid
  OnFailure on_failure = OnFailure::kEnd;

  // Of the coordd that may be started again on its state, so that this rank resumes its session;
  // empty: it remembers nothing, and a lost connection is the end of the generation.
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
// Implemented in worker_state.cc (what comes in), worker_state_plan.cc (plans),
// worker_state_tick.cc (time), worker_state_reforming.cc,
// worker_state_resume.cc and worker_state_trace.cc.
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
  const std::vector<TensorId>& question() const { return schedules_.question(); }
  // Whether Tick has something to do before the NextDeadline that was told before the last Step,
  // besides what that Step itself has named a deadline for.
  bool turn_due() const {
    return (has_report() && attached() && !expects_next_) || (leaving_ && !stopped_) ||
           report_is_due() || (asked_abort_.has_value() && launched_.empty());
  }
  // Whether it has a session; false: its connection to coordd is lost, and it looks for another.
  bool attached() const { return session_.attached(); }
  // The goodbye is said, or forced: Stopped was given, nothing will follow.
  bool stopped() const { return stopped_; }

  // Those that the ranks have asked for.
  std::vector<DefineProcessSet> process_sets() const { return process_sets_.AskedFor(); }
  // OK while the generation is alive.
  const absl::Status& status() const { return end_; }
  int64_t pending_tensors() const;
  int64_t unreported_tensors() const { return static_cast<int64_t>(pending_.unreported()); }
  int64_t executing_batches() const { return static_cast<int64_t>(launched_.size()); }
  // How late this rank comes to collectives, as coordd has told last.
  absl::Duration arrival_lag() const { return session_.heartbeats().arrival_lag(); }
  // coordd asks where the program is. Once.
  bool TakeStackWanted() { return session_.heartbeats().TakeStackWanted() && !leaving_; }
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

  void OnGenerationMessage(const v1::CoordinatorMessage& message, const WorkerTurn& turn);
  void OnPlan(const v1::CollectivePlan& plan, const WorkerTurn& turn);
  // The pending tensor that a plan or a failure for this set means; end(): none.
  PendingTensors::iterator FindPending(ProcessSetId process_set, absl::string_view name);
  // The tensors of a batch. INTERNAL: it has none, or by slots that coordd has not given.
  absl::StatusOr<std::vector<absl::string_view>> NamesOf(const v1::FusedBatch& batch);
  // What a batch says about a tensor that this rank, which has joined, has not submitted. INTERNAL:
  // it has not joined, or nothing is said.
  absl::StatusOr<TensorSpec> AbsentSpec(const v1::FusedBatch& batch, int index,
                                        absl::string_view name) const;
  absl::Status LearnSlots(const v1::CollectivePlan& plan);
  // INTERNAL: what is wrong with the batch; `executing` then holds the tensors that are not pending
  // any more.
  absl::Status PlanBatch(const v1::FusedBatch& batch, LaunchedBatch& executing,
                         const WorkerTurn& turn);
  // Moves one of the batch's tensors from pending to executing.
  void PlanTensor(PendingTensors::iterator found, LaunchedBatch& executing, LaunchBatch& launch,
                  const WorkerTurn& turn);
  void OnProcessSetChange(const v1::ProcessSetChange& change, const WorkerTurn& turn);
  void OnFailures(const v1::TensorFailures& failures, const WorkerTurn& turn);
  void OnAbort(const v1::Abort& abort, const WorkerTurn& turn);

  // worker_state_reforming.cc
  // What the next generation begins with, until all of it is there.
  void OnNext(const v1::CoordinatorMessage& message, const WorkerTurn& turn);
  void OnMembership(const v1::CoordinatorMessage& message, const v1::ProcessSets& sets,
                    const WorkerTurn& turn);
  // Whether something was submitted for an older generation, whose end the program has to see.
  bool IsOutdated(Generation submitted_for) const {
    return ToInt(submitted_for) != 0 && submitted_for < options_.generation;
  }
  bool IsOutdated(Generation submitted_for, const TensorSpec& spec) const {
    return IsOutdated(submitted_for) && !(continues() && OutlivesGeneration(spec));
  }
  void AskForChange(const WorkerTurn& turn);
  void OnDrainNotice(const v1::DrainNotice& notice, const WorkerTurn& turn);
  void SetDrain(absl::Time until, const WorkerTurn& turn);
  void AskToLeave(const WorkerTurn& turn);
  bool is_to_leave() const {
    return drain_asked_.has_value() || drain_until_ != absl::InfiniteFuture();
  }
  // An Abort on which the members had agreed, once what was executing has ended.
  void CheckAskedAbort(const WorkerTurn& turn);
  bool has_report() const {
    const size_t unreported = pending_.unreported();
    return unreported > 0 && (unreported > 1 || !JoinWaits());
  }
  bool report_is_due() const {
    return reforms_ && !reported_ && !leaving_ && launched_.empty() && attached();
  }
  void ReportRecovery(const WorkerTurn& turn);
  bool continues() const { return options_.on_failure == OnFailure::kContinue; }
  // The generation is over, and programs need not know: everything goes on in the next one.
  void Interrupt(const absl::Status& why, const WorkerTurn& turn);
  // Takes back what was launched and interrupted; whether that was possible.
  bool TakeAgain(SubmittedTensor& tensor, const WorkerTurn& turn);
  // When coordd has to have said who is to blame for a failure here.
  void AwaitVerdict(absl::Time now);
  // No generation follows.
  void EndForGood(absl::Status why, const WorkerTurn& turn);
  // Nothing more can come from coordd: the end of this generation, or of waiting for the next.
  void GiveUp(absl::Status why, const WorkerTurn& turn);
  bool counts_lease() const { return (end_.ok() || (expects_next_ && !leaving_)) && attached(); }

  void OnSchedule(const v1::Schedule& schedule, const WorkerTurn& turn);
  void OnFreeze(const v1::Freeze& freeze, const WorkerTurn& turn);
  void OnCut(const v1::Cut& cut, const WorkerTurn& turn);
  void EndForFault(const ScheduledWork::Fault& fault, const WorkerTurn& turn);
  void CheckSchedules(const WorkerTurn& turn);
  bool JoinWaits() const;
  ScheduledWork::Context ForSchedules(const WorkerTurn& turn) {
    return {turn, pending_, launched_, session_, leaving_};
  }

  // worker_state_trace.cc
  void OnTrace(const v1::Trace& trace, const WorkerTurn& turn);
  void AnswerTraceBegin(const WorkerTurn& turn);
  void EndTraceWhenComplete(const WorkerTurn& turn);
  void EndTrace(bool send, const WorkerTurn& turn);

  // worker_state_resume.cc
  bool MayResume(const absl::Status& ended) const;
  void Detach(const absl::Status& why, const WorkerTurn& turn);
  void TryAgain(const WorkerTurn& turn);
  // Whether the message is of the session at hand; adopts the epoch of a coordd that was started
  // again.
  bool IsOfThisSession(const CoordinatorSaid& in, const WorkerTurn& turn);
  void OnResumed(const v1::Resumed& resumed, const WorkerTurn& turn);
  void SendResume(const WorkerTurn& turn);
  std::vector<v1::ResumeReport> ResumeReports(int64_t answered_requests) const;
  void ReportAnew(const WorkerTurn& turn);
  void Log(v1::CoordinatorMessage message);

  // `abort`: also what is executing.
  void EndGeneration(absl::Status why, bool abort, const WorkerTurn& turn);
  void FailEverything(const WorkerTurn& turn);
  void ProtocolError(absl::string_view what, const WorkerTurn& turn);
  void WithdrawProcessSets(const WorkerTurn& turn);

  void CheckDeadlines(const WorkerTurn& turn);
  void CheckExecuting(const WorkerTurn& turn);
  void Report(const WorkerTurn& turn);
  void SendHeartbeat(const WorkerTurn& turn);
  void TellOfSchedule(ScheduledWork::Scheduled& scheduled, absl::Time now,
                      v1::LanePosition& position);
  void LeaveFailing(const WorkerTurn& turn);
  void LeaveWhenDrained(const WorkerTurn& turn);
  void SayGoodbye(const WorkerTurn& turn);
  void Send(v1::WorkerMessage message, const WorkerTurn& turn) {
    session_.Send(std::move(message), turn);
  }
  void SendAll(std::vector<v1::WorkerMessage> messages, const WorkerTurn& turn);
  void SendFailed(BatchKey batch, const std::string& tensor, absl::string_view detail,
                  std::optional<Suspect> suspect, const WorkerTurn& turn);

  WorkerStateOptions options_;  // of the generation

  PendingTensors pending_;
  SlotTable slots_;
  ProcessSetState process_sets_;
  LaunchedBatches launched_;

  ScheduledWork schedules_;
  std::optional<v1::Abort> asked_abort_;  // to be heeded when nothing executes, or then
  absl::Time asked_abort_deadline_;

  struct Tracing {
    int64_t id = 0;  // 0: nothing is recorded for coordd
    LaneId lane;     // whose repetitions are steps; 0: none
    int64_t bytes_max = 0;
    int64_t from_cycle = 0, until_cycle = 0;  // 0: until coordd says so
  };
  Tracing tracing_;

  absl::Status end_;
  bool aborted_ = false;  // AbortExecution was given
  // This generation is over, and as far as this rank knows another one follows it.
  bool expects_next_ = false;
  bool reforms_ = false;           // the coordd that this rank has a session with has said so
  bool reports_sets_ = false;      // and wants to know the process sets
  bool reported_ = false;          // and has been told what has become of it: RecoveryReport
  bool has_ended_ = false;         // some coordd has been: nothing of it executes
  bool asked_for_change_ = false;  // of members, in this generation
  std::optional<v1::CoordinatorMessage> arriving_;  // a Membership whose sets are still to come
  v1::ProcessSets arriving_sets_;
  std::vector<v1::Departure> departures_;  // as coordd has named them
  absl::Status change_;                    // why the last generation ended; OK: this is the first
  std::optional<DrainAsked> drain_asked_;  // by the program
  absl::Time drain_until_ = absl::InfiniteFuture();  // infinite: this rank may stay
  bool leaving_ = false;
  Goodbye goodbye_;    // that is to be said, when leaving
  bool left_ = false;  // Leave was sent
  bool stopped_ = false;

  CoordinatorSession session_;
  int64_t position_ = 0;  // of the message at hand
  ProcessSetId to_;       // of the schedule that it freezes or cuts
  ReceivedLog log_;
  int32_t last_process_set_ = 0;  // the highest numbers that coordd has used
  int64_t sets_position_ = 0;     // of the last addition or end of a set of which all hear
  struct Totals {                 // of all generations
    int64_t collectives = 0;
    int64_t bytes = 0;
    int64_t batches = 0;
  };
  Totals totals_;
};

}  // namespace coordd
