// One job: its token and limits, its workers, its current generation and its store, composed.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/topology.h"
#include "common/protocol/types.h"
#include "coordd/v1/admin.pb.h"
#include "coordd/v1/records.pb.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/generation_state.h"
#include "server/job/current_generation.h"
#include "server/job/dismissals.h"
#include "server/job/drains.h"
#include "server/job/forming.h"
#include "server/job/job_history.h"
#include "server/job/job_token.h"
#include "server/job/job_workers.h"
#include "server/job/kv_state.h"
#include "server/job/reforming.h"
#include "server/job/rendezvous_state.h"
#include "server/job/repair_plan.h"
#include "server/job/resume_state.h"
#include "server/job/trace_state.h"
#include "server/job/waiting_news.h"
#include "server/model/durability.h"
#include "server/model/effects.h"
#include "server/model/server_options.h"
#include "server/model/turn.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe: one owner.
//
// What it consists of has classes of its own: its generation (CurrentGeneration, which is replaced
// whole), who forms one (RendezvousState, Admission), what is stored before it is said (Forming),
// who comes back (ResumeState), what follows a generation (Reforming), who is asked to leave
// (Drains). What it is doing is one Stage of theirs.
//
// Implemented in job_state.cc (messages, store, time), job_membership.cc (who is in),
// job_durability.cc (what is stored), job_resume.cc (a generation that goes on after a restart of
// coordd), job_reforming.cc (what follows a generation that lost a member), job_process_sets.cc
// (what it leaves to that one), job_exits.cc (why a stream has ended), job_dismissal.cc (who is to
// go), job_stacks.cc (where programs are) and job_describe.cc (its stage, and what operators see).
class JobState {
 public:
  // Its first generation will be `last` + 1. `options` and `durability` outlive it.
  JobState(std::string name, const ServerOptions& options, const Durability& durability,
           Epoch epoch, Generation last, absl::Time now);

  // From before coordd was started again. Its token, its limits and its last generation are known,
  // and who its members were. Each has a lease and a grace to resume its session, or to join anew
  // if it had not heard of the generation; meanwhile nothing is planned and nobody else is
  // admitted. Then the generation goes on; if one is missing, it ends as at any loss. REQUIRES:
  // new.
  // `drains`: of them, who had been asked to leave; they are asked again.
  void Restore(const v1::JobRecord& record, const v1::DrainRecord& drains, const Turn& turn);
  // What was to be stored is, or not.
  void OnPersisted(Generation generation, const absl::Status& status, const Turn& turn);

  // The refusals of session.proto, in one sentence each. REQUIRES: ValidateJoin(join) is OK.
  absl::Status Join(SessionId session, const v1::Join& join, const Turn& turn);
  // REQUIRES of these two: the session has joined this job and is not gone.
  void OnMessage(SessionId session, const v1::WorkerMessage& message, const Turn& turn);
  // Reports of several members of the generation that are the same, as OnMessage of each. False,
  // and nothing has happened, where one of them is no member, or where it takes more than counting.
  bool OnSharedReady(SessionRange from, const v1::WorkerMessage& message, const Turn& turn);
  // It departs now, or as soon as its launcher has told why, in a moment at the latest; until then
  // Has(session).
  void OnSessionEnded(SessionId session, absl::string_view detail, const Turn& turn);
  // What carried these has ended, with `detail`, as in "after the relay of node3 was lost": where
  // members may come back to their generation, they all do. REQUIRES: Has each.
  void OnStreamsLost(const std::vector<SessionId>& sessions, absl::string_view detail,
                     const Turn& turn);
  bool Has(SessionId session) const { return workers_.contains(session); }
  // UNAUTHENTICATED. `known`: how many of them have been workers. REQUIRES: ValidateExits is OK.
  absl::Status OnExits(const v1::ReportExitsRequest& request, int32_t* known, const Turn& turn);

  void OnStoreCall(const StoreCall& call, Effects& effects);
  // Answered with a TraceAnswer if it is OK; the statuses of Admin.Trace.
  absl::Status Trace(const TraceCall& call, const Turn& turn);
  // Answered with a DismissAnswer, when it is stored; the statuses of Admin.Dismiss.
  void Dismiss(const DismissCall& call, const Turn& turn);
  void OnDrainsStored(CallId call, const absl::Status& status, const Turn& turn);
  bool traced() const { return trace_.under_way(); }
  void CancelCall(CallId call, Effects& effects);

  void Tick(const Turn& turn);
  absl::Time NextDeadline() const;
  // Absent: nothing is negotiated.
  std::optional<MembersReports> WhoHasReported() const {
    if (!negotiating()) return std::nullopt;
    return generation_->state().WhoHasReported();
  }

  // coordd was not running for `gap`. For a lease from now on, a member whose stream ends has lost
  // patience, not its life: all members come back as after a start of coordd, also of a generation
  // that is over and that another one is to follow.
  void Forgive(absl::Duration gap, absl::Time now);
  // coordd is going away: all sessions are told why (one sentence) and closed.
  void Stop(const StopRequested& stop, const Turn& turn);

  void Describe(absl::Time now, v1::JobState* state) const;

  bool ended() const { return !started_ || rendezvous_.phase() == RendezvousPhase::kEnded; }
  absl::Time ended_since() const { return rendezvous_.phase_since(); }
  // Also those who wait for a generation, or may come back.
  bool has_workers() const { return !workers_.empty() || resume_.has_value() || reforming_.open(); }
  size_t workers() const { return workers_.size(); }
  int64_t waiting_calls() const { return kv_.waiting() + (traced() ? 1 : 0); }
  Generation generation() const { return rendezvous_.generation(); }
  Generation last_number() const { return rendezvous_.proposed(); }  // no other job may repeat it
  absl::Status CheckConsistency() const;  // its invariants; O(everything)

 private:
  using Worker = JobWorker;
  // What a generation has from the one before.
  struct Inheritance {
    std::vector<v1::LaneRepair> repairs;
    v1::ProcessSets process_sets;
    bool has_sets() const;
  };

  // docs/design/recovery.md has the table: what the parts of each are.
  enum class Stage {
    kEnded,
    kGathering,    // for a first generation, or for one that has nothing from one before
    kNegotiating,  // its generation is intact
    kReporting,    // it is over, and its survivors report what they have of it
    kFollowing,    // they have, and gather for the next
    kWindingUp,    // it is over, and none follows
    kReturning,    // its members come back
  };
  // job_describe.cc
  Stage stage() const;
  absl::Status CheckStage() const;

  // job_state.cc
  absl::Status Dispatch(SessionId session, Worker& worker, const v1::WorkerMessage& message,
                        const Turn& turn);
  absl::Status OnNegotiation(Rank rank, const v1::WorkerMessage& message, const Turn& turn);
  bool IsCurrent(Worker& worker, SessionId session, const v1::WorkerMessage& message,
                 const Turn& turn);
  void NoteExecuted(const Worker& worker, int64_t batches, int64_t bytes);
  ExecutedCounts::Count PlannedInGeneration() const;   // REQUIRES: there is one
  ExecutedCounts::Count ExecutedInGeneration() const;  // none: 0
  void OnHeartbeat(SessionId session, Worker& worker, const v1::Heartbeat& heartbeat,
                   const Turn& turn);
  // job_stacks.cc
  bool WantsStack(Worker& worker, absl::Time now);
  void OnStack(Worker& worker, const std::string& stack, Effects& effects);
  void OnLeave(SessionId session, const Worker& worker, const v1::Leave& leave, const Turn& turn);
  void OnCollectiveFailed(const Worker& worker, const v1::CollectiveFailed& failed,
                          const Turn& turn);
  void OnStale(const Worker& worker, const v1::WorkerMessage& message, Effects& effects);
  void ProtocolError(SessionId session, const absl::Status& why, const Turn& turn);
  std::shared_ptr<v1::CoordinatorMessage> NewMessage(Generation generation) const;
  void Emit(Event::Kind kind, absl::string_view text, Effects& effects,
            v1::DepartureCause cause = v1::DEPARTURE_CAUSE_UNSPECIFIED) const;
  bool negotiating() const { return generation_.has_value() && generation_->intact(); }
  Damage damage() const { return generation_.has_value() ? generation_->damage() : Damage::kNone; }
  // Of the same worker, in a generation that is over and that none follows.
  std::optional<SessionId> OldIncarnation(const std::string& worker_id) const {
    return generation_.has_value() ? generation_->OldOf(worker_id) : std::nullopt;
  }

  // job_membership.cc
  void ReplaceWaiting(const v1::Join& join, const Turn& turn);
  // What refuses it, or UNAVAILABLE if that may be the doing of one whose end is not noticed yet.
  absl::Status MayJoin(const v1::Join& join, absl::Time now);
  absl::Status ExplainFull(const v1::Join& join, absl::Status room) const;
  bool HasLivedSince(const Worker& worker, absl::Time since, absl::Time now) const;
  absl::Status Start(const v1::Join& join, absl::Time now);
  absl::Status CheckAgreement(const v1::Join& join);
  void Depart(SessionId session, v1::DepartureCause cause, absl::string_view detail,
              const Turn& turn);
  Damage DamageOf(v1::DepartureCause cause) const;
  void EndGeneration(Damage damage, const std::string& reason, const Turn& turn);
  void ForgetGeneration();
  void NoteGone(const Turn& turn);
  void Form(const std::vector<SessionId>& sessions, const Turn& turn);
  GenerationState::Identity IdentityOf(const std::vector<SessionId>& members) const;
  // DeliverSets follows.
  void DeliverMembership(SessionId session, const Worker& worker, const Topology& topology,
                         const Inheritance& inherited, int64_t slots, Effects& effects) const;
  void TellWaiting(const Turn& turn);
  std::string Who(const Worker& worker) const;  // "rank 2 (host node3, pid 4711)"

  // job_durability.cc
  void Propose(const Turn& turn);
  v1::JobRecord RecordOf(const std::vector<SessionId>& sessions) const;
  void PersistEnd(Effects& effects);

  // job_resume.cc
  absl::Status JoinToResume(SessionId session, const v1::Join& join, const Turn& turn);
  absl::Status RefuseResume(const v1::Join& join);
  void AwaitMembers(absl::string_view after, absl::Time now);
  bool HasLostItsStream(const v1::Join& join, absl::Time now);
  bool IsExcused(absl::Time now) const {
    return durability_.outlives && MayBeTakenUp() && now < excused_until_;
  }
  // The generation is intact, or over and another one is to follow.
  bool MayBeTakenUp() const {
    const Stage is = stage();
    return is == Stage::kNegotiating || is == Stage::kReporting || is == Stage::kFollowing;
  }
  void Suspend(absl::string_view after, const Turn& turn);
  void NoteDeparted(const std::set<std::string>& members);
  bool NoteLostMember(const v1::LaunchedExit& in);
  std::string Who(Rank rank) const;  // REQUIRES: resume_
  void AddReturned(SessionId session, const v1::Join& join, Rank rank, const Turn& turn);
  void OnResuming(SessionId session, const Worker& worker, const v1::WorkerMessage& message,
                  const Turn& turn);
  void DropReturned(SessionId session);
  void LeaveDrained(SessionId session, const Drain& drain, const Turn& turn);
  void LeaveFailed(SessionId session, absl::string_view failure, const Turn& turn);
  void WatchResume(const Turn& turn);
  void FinishResume(const Turn& turn);
  void DeliverResumed(SessionId session, const ResumedGeneration& resumed, Effects& effects) const;
  void FailResume(Damage damage, const std::string& reason,
                  const std::vector<v1::Departure>& departures, const Turn& turn);
  absl::StatusOr<Topology> ResumedTopology() const;
  v1::Departure DepartureOf(Rank rank, v1::DepartureCause cause, absl::string_view what) const;
  bool IsReturned(const Worker& worker) const {
    return resume_.has_value() && worker.generation != Generation{0};
  }

  // job_reforming.cc
  void OnChangeMembers(const Worker& worker, const Turn& turn);
  // REQUIRES: a member of a generation that is over and will be followed by another. A status
  // breaks the protocol.
  absl::Status OnRecoveryReport(SessionId session, Worker& worker, v1::RecoveryReport report,
                                const Turn& turn);
  // What the survivors among them do first, if they go on.
  std::vector<v1::LaneRepair> Repairs(const std::vector<SessionId>& sessions) const;
  TopologyMember MemberOf(SessionId session) const;
  void WatchReforming(const Turn& turn);
  void ExpelSilent(const Turn& turn);
  // A failure that nobody's departure has explained, for which `why` stands.
  void Judge(const std::string& why, const Turn& turn);
  std::string BlameText(const BlamedLink& link) const;
  std::vector<SurvivorReport> ReportsOf(const std::vector<SessionId>& sessions) const;
  void CheckReports(const Turn& turn);
  bool DismissNewcomers(const Turn& turn);
  std::string NobodyIsTaken() const;
  void NoteLostState(const std::vector<SessionId>& sessions, Effects& effects);
  void GiveUp(const absl::Status& why, const Turn& turn);
  void GiveUpReforming(const Turn& turn);

  // job_process_sets.cc
  static absl::Status AddReport(const GenerationState& generation, v1::RecoveryReport report,
                                v1::RecoveryReport& whole);
  v1::ProcessSets LeftSets(const std::vector<SessionId>& sessions) const;
  // What of them there is in the next generation, of these.
  v1::ProcessSets NextSets(const std::vector<SessionId>& sessions, const Topology& topology) const;
  void DeliverSets(const std::vector<SessionId>& to, const Inheritance& inherited,
                   Effects& effects) const;

  // job_dismissal.cc
  absl::StatusOr<std::vector<SessionId>> Meant(const v1::DismissRequest& request) const;
  absl::Status MayGo(const v1::DismissRequest& request, const std::vector<SessionId>& meant) const;
  void Evict(SessionId session, const std::string& detail, const Turn& turn);
  void LiftDrain(SessionId session, absl::string_view by, Effects& effects);
  bool PersistDrains(CallId call, Effects& effects);
  std::optional<SessionId> SessionOf(const std::string& worker_id) const;
  // REQUIRES: it has been asked.
  void BeginDrain(SessionId session, const Turn& turn);
  void TellDrain(SessionId session, const Drain& drain, const Turn& turn) const;
  static std::string DrainedText(const Drain& drain);
  void OnDrainRequest(SessionId session, const Worker& worker, const v1::DrainRequest& request,
                      const Turn& turn);
  void TellDrains(const Turn& turn);
  void WatchDrains(const Turn& turn);
  void FailDismissals(Effects& effects);
  // Until when those who have agreed on a change of members wait for one of them to say goodbye;
  // InfinitePast: they wait for nobody.
  absl::Time NextLeaving() const;

  // job_exits.cc
  bool NoteExit(const v1::LaunchedExit& in, Effects& effects);
  // Of a run that had this name before the one that `join` begins.
  void ForgetEarlierRun(const v1::Join& join);
  void WatchDeparting(const Turn& turn);

  // job_describe.cc
  void DescribeWorker(SessionId session, const Worker& worker, absl::Time now,
                      v1::WorkerState* state) const;
  std::string Activity(const Worker& worker) const;

  const std::string name_;
  const ServerOptions& options_;
  const Durability& durability_;
  const Epoch epoch_;

  bool started_ = false;
  JobToken token_;
  Forming forming_;
  // Of a job that was restored or suspended, until its generation goes on or has ended. Those who
  // are back are in workers_, and not in rendezvous_.
  std::optional<ResumeState> resume_;
  absl::Time excused_until_ = absl::InfinitePast();

  RendezvousState rendezvous_;
  Reforming reforming_;
  JobWorkers workers_;
  KvState kv_;
  TraceState trace_;

  Drains drains_;
  Dismissals dismissals_;

  std::optional<CurrentGeneration> generation_;
  // Of the generation before, until the next one has formed; absent: they were not known.
  std::optional<v1::ProcessSets> left_sets_;
  JobHistory history_;
  WaitingNews news_;
};

}  // namespace coordd
