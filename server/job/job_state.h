// One job: its token and limits, its workers, its current generation and its store, composed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/admin.pb.h"
#include "coordd/v1/records.pb.h"
#include "coordd/v1/session.pb.h"
#include "server/job/current_generation.h"
#include "server/job/dismissal_desk.h"
#include "server/job/forming.h"
#include "server/job/inheritance.h"
#include "server/job/job_history.h"
#include "server/job/job_messages.h"
#include "server/job/job_return.h"
#include "server/job/job_token.h"
#include "server/job/job_view.h"
#include "server/job/job_workers.h"
#include "server/job/kv_state.h"
#include "server/job/next_generation.h"
#include "server/job/reforming.h"
#include "server/job/rendezvous_state.h"
#include "server/job/store_return.h"
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
// whole), who forms one (RendezvousState, JobWorkers, join_rules), what is stored before it is said
// (Forming), who comes back (JobReturn) and brings the store (StoreReturn), what follows a
// generation (Reforming, Survivors), who is asked to leave (DismissalDesk), what is said
// (JobMessages). Together they are in one JobStage.
//
// Implemented in job_state.cc (what comes in: messages, calls, time) and job_membership.cc (who is
// in: workers come and go, generations begin and end).
class JobState {
 public:
  // Its first generation will be `last` + 1. `options` and `durability` outlive it.
  JobState(std::string name, const ServerOptions& options, const Durability& durability,
           Epoch epoch, Generation last, absl::Time now);
  JobState(const JobState&) = delete;
  JobState& operator=(const JobState&) = delete;

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
  // A session has ended. Its worker departs now, or as soon as its launcher has told why, in a
  // moment at the latest; until then Has(session).
  void OnSessionEnded(SessionId session, absl::string_view detail, const Turn& turn);
  // What carried these has ended, with `detail`, as in "after the relay of node3 was lost": where
  // members may come back to their generation, they all do. REQUIRES: Has each.
  void OnStreamsLost(const std::vector<SessionId>& sessions, absl::string_view detail,
                     const Turn& turn);
  bool Has(SessionId session) const { return workers_.contains(session); }
  // UNAUTHENTICATED. `known`: how many of them have been workers. REQUIRES: ValidateExits is OK.
  absl::Status OnExits(const v1::ReportExitsRequest& request, int32_t* known, const Turn& turn);

  void OnStoreCall(const StoreCall& call, const Turn& turn);
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

  // ToString of who has made it, and what its jobs may take together; set before its first member
  // joins, or for what was restored.
  const std::string& owner() const { return token_.owner(); }
  void SetOwner(std::string owner, const std::shared_ptr<ByteBudget>& budget) {
    token_.SetOwner(std::move(owner), budget);
    kv_.Bind(budget);
    workers_.Bind(budget);
    return_.Bind(budget);
    store_return_.Bind(budget);
  }
  // Whether it has a token, and it is this one.
  bool IsKnownBy(absl::string_view token) const { return token_.IsKnownBy(token); }

  bool ended() const { return !started_ || rendezvous_.phase() == RendezvousPhase::kEnded; }
  absl::Time ended_since() const { return rendezvous_.phase_since(); }
  // Whether there are workers, those included who wait for a generation or may come back.
  bool has_workers() const { return !workers_.empty() || return_.under_way() || reforming_.open(); }
  size_t workers() const { return workers_.size(); }
  int64_t waiting_calls() const { return kv_.waiting() + (traced() ? 1 : 0); }
  Generation generation() const { return rendezvous_.generation(); }
  Generation last_number() const { return rendezvous_.proposed(); }  // no other job may repeat it
  absl::Status CheckConsistency() const;  // its invariants; O(everything)

 private:
  using Worker = JobWorker;

  // job_state.cc
  JobView View() const;
  JobStage stage() const { return StageOf(View()); }
  JobOutlook Outlook() const;
  // What the desk may do to a worker.
  auto Dismisser(const Turn& turn) {
    return [this, &turn](SessionId session, v1::DepartureCause cause, const std::string& detail,
                         const absl::Status& close) { Expel(session, cause, detail, close, turn); };
  }
  absl::Status Dispatch(SessionId session, Worker& worker, const v1::WorkerMessage& message,
                        const Turn& turn);
  bool IsCurrent(const Worker& worker, SessionId session, const v1::WorkerMessage& message,
                 const Turn& turn);
  void OnHeartbeat(SessionId session, Worker& worker, const v1::Heartbeat& heartbeat,
                   const Turn& turn);
  void OnLeave(SessionId session, const Worker& worker, const v1::Leave& leave, const Turn& turn);
  void OnCollectiveFailed(const Worker& worker, const v1::CollectiveFailed& failed,
                          const Turn& turn);
  void OnStale(const Worker& worker, const v1::WorkerMessage& message, Effects& effects);
  void ProtocolError(SessionId session, const absl::Status& why, const Turn& turn);
  void Take(SessionId session, Worker& worker, const v1::WorkerMessage& message, const Turn& turn);
  void OnReturning(SessionId session, const Worker& worker, const v1::WorkerMessage& message,
                   const Turn& turn);
  bool NoteExit(const v1::LaunchedExit& in, Effects& effects);
  void NoteExecuted(const Worker& worker, int64_t batches, int64_t bytes);
  void PersistEnd(Effects& effects);
  void AwaitMembers(absl::string_view after, absl::Time now);
  void WatchDeparting(const Turn& turn);
  void ExpelExpired(const Turn& turn);
  void Emit(Event::Kind kind, absl::string_view text, Effects& effects,
            v1::DepartureCause cause = v1::DEPARTURE_CAUSE_UNSPECIFIED) const {
    messages_.Emit(kind, text, effects, cause);
  }
  bool negotiating() const { return generation_.has_value() && generation_->intact(); }
  Damage damage() const { return generation_.has_value() ? generation_->damage() : Damage::kNone; }

  // job_membership.cc: workers come and go
  absl::Status JoinNew(SessionId session, const v1::Join& join, const Turn& turn);
  absl::Status RefuseResume(const v1::Join& join);
  void ReplaceWaiting(const v1::Join& join, const Turn& turn);
  absl::Status Start(const v1::Join& join, absl::Time now);
  // Of the same worker, which is in, perhaps in a generation that is over and that none follows.
  std::optional<SessionId> SessionOf(const std::string& worker_id) const;
  void Depart(SessionId session, v1::DepartureCause cause, absl::string_view detail,
              const Turn& turn);
  // It departs, and its session is closed with `close`.
  void Expel(SessionId session, v1::DepartureCause cause, const std::string& detail,
             const absl::Status& close, const Turn& turn);
  void ExpelAll(const std::vector<SessionId>& sessions, const absl::Status& why, const Turn& turn);
  void NoteGone(const Turn& turn);

  // Generations begin.
  void Propose(const Turn& turn);
  void Confirm(Generation number, const Turn& turn);
  void Form(const std::vector<SessionId>& sessions, const NextGeneration& next, const Turn& turn);
  void NoteLostState(const std::vector<SessionId>& sessions, Effects& effects);

  // Generations end.
  void EndGeneration(Damage damage, const std::string& reason, const Turn& turn);
  std::vector<SessionId> LetGo(bool was_intact);
  void ForgetGeneration(const Turn& turn) {
    if (generation_.has_value()) history_.executed().EndGeneration(generation_->planned());
    DropGeneration(turn);
  }
  void DropGeneration(const Turn& turn) {
    if (generation_.has_value()) generation_->Bury(turn);
    generation_.reset();
  }
  void OnChangeMembers(const Worker& worker, const Turn& turn);
  // REQUIRES: a member of a generation that is over and will be followed by another. A status
  // breaks the protocol.
  absl::Status OnRecoveryReport(SessionId session, Worker& worker, v1::RecoveryReport report,
                                const Turn& turn);
  void CheckReports(const Turn& turn);
  void WatchReforming(const Turn& turn);
  // A failure that nobody's departure has explained, for which `why` stands.
  void Judge(const std::string& why, const Turn& turn);
  void ExpelSilent(const Turn& turn);
  void GiveUp(const absl::Status& why, const Turn& turn);

  // Generations go on, or not, once their members are back.
  // The generation is intact, or over and another one is to follow.
  bool MayBeTakenUp() const {
    const JobStage is = stage();
    return is == JobStage::kNegotiating || is == JobStage::kReporting || is == JobStage::kFollowing;
  }
  bool IsExcused(absl::Time now) const {
    return durability_.outlives && return_.Excuses(now) && MayBeTakenUp();
  }
  bool HasLostItsStream(const v1::Join& join, absl::Time now);
  void Suspend(absl::string_view after, const Turn& turn);
  void ConcludeReturn(const Turn& turn);
  void TakeUp(int64_t entries, const Turn& turn);
  void WatchReturn(const Turn& turn);
  void FailReturn(const ReturnFailure& failure, const Turn& turn);

  const ServerOptions& options_;
  const Durability& durability_;
  bool started_ = false;
  JobToken token_;
  Forming forming_;
  RendezvousState rendezvous_;
  Reforming reforming_;
  JobWorkers workers_;  // those who are back, while members return, are not in rendezvous_
  KvState kv_;
  StoreReturn store_return_;
  TraceState trace_;
  JobMessages messages_;
  Survivors survivors_;
  JobReturn return_;
  DismissalDesk desk_;
  std::optional<CurrentGeneration> generation_;
  JobHistory history_;
  WaitingNews news_;
};

}  // namespace coordd
