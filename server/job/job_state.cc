#include "server/job/job_state.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "server/job/departure.h"
#include "server/job/join_rules.h"
#include "server/job/message_age.h"
#include "server/job/rank_stacks.h"
#include "server/model/access_rules.h"
#include "server/model/job_record.h"
#include "server/model/process_exit.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// Of a lease: so much earlier a member may be given up that has been heard with others of its node.
constexpr int kSharedHeard = 64;
constexpr absl::string_view kSlept = "coordd was not running for a while";

}  // namespace

JobState::JobState(std::string name, const ServerOptions& options, const Durability& durability,
                   Epoch epoch, Generation last, absl::Time now)
    : options_(options),
      durability_(durability),
      token_(name, durability.cluster_id),
      rendezvous_(RendezvousOptions{}, last, now),
      kv_(name,
          KvBounds{.max_keys = options.max_store_keys_per_job,
                   .max_bytes = options.max_store_bytes_per_job},
          epoch),
      store_return_(options.max_store_bytes_per_job),
      messages_(std::move(name), options, durability, epoch, rendezvous_),
      survivors_(workers_, reforming_),
      return_(options, durability, messages_, workers_),
      desk_(options, durability, messages_, workers_, reforming_, rendezvous_) {}

JobView JobState::View() const {
  return {.name = messages_.name(),
          .options = options_,
          .started = started_,
          .rendezvous = rendezvous_,
          .reforming = reforming_,
          .workers = workers_,
          .generation = generation_.has_value() ? &*generation_ : nullptr,
          .resume = return_.under_way() ? &*return_.state() : nullptr,
          .kv = kv_,
          .drains = desk_.drains(),
          .history = history_};
}

JobOutlook JobState::Outlook() const {
  JobOutlook outlook{.ended = ended(),
                     .returning = return_.under_way(),
                     .generation = generation(),
                     .not_stored = forming_.not_stored()};
  if (generation_.has_value()) outlook.size = generation_->state().size();
  return outlook;
}

void JobState::Describe(absl::Time now, v1::JobState* state) const {
  coordd::Describe(View(), now, state);
  state->set_owner(owner());
}

absl::Status JobState::CheckConsistency() const { return coordd::CheckConsistency(View()); }

void JobState::OnMessage(SessionId session, const v1::WorkerMessage& message, const Turn& turn) {
  Worker& worker = workers_.at(session);
  worker.last_heard = turn.now;
  if (message.has_resume_report()) store_return_.Report(session, message.resume_report());
  Take(session, worker, message, turn);
}

void JobState::Take(SessionId session, Worker& worker, const v1::WorkerMessage& message,
                    const Turn& turn) {
  if (return_.Has(worker)) return OnReturning(session, worker, message, turn);
  rendezvous_.Heard(session, turn.now);
  if (!IsCurrent(worker, session, message, turn)) return;
  const absl::Status status = Dispatch(session, worker, message, turn);
  if (!status.ok()) ProtocolError(session, status, turn);
}

// A status breaks the protocol. REQUIRES: IsCurrent.
absl::Status JobState::Dispatch(SessionId session, Worker& worker, const v1::WorkerMessage& message,
                                const Turn& turn) {
  switch (message.body_case()) {
    case v1::WorkerMessage::kHeartbeat:
      COORDD_RETURN_IF_ERROR(ValidateHeartbeat(message.heartbeat()));
      OnHeartbeat(session, worker, message.heartbeat(), turn);
      return absl::OkStatus();
    case v1::WorkerMessage::kTensorsReady:
    case v1::WorkerMessage::kTensorsWithdrawn:
    case v1::WorkerMessage::kProcessSetRequest:
    case v1::WorkerMessage::kScheduleAck:
    case v1::WorkerMessage::kScheduleBreak:
    case v1::WorkerMessage::kScheduleFinished:
    case v1::WorkerMessage::kFreezeReply:
      return generation_->OnMessage(worker.place.rank, message, turn);
    case v1::WorkerMessage::kRecoveryReport:
      COORDD_RETURN_IF_ERROR(ValidateRecoveryReport(message.recovery_report()));
      return OnRecoveryReport(session, worker, message.recovery_report(), turn);
    case v1::WorkerMessage::kChangeMembers:
      OnChangeMembers(worker, turn);
      return absl::OkStatus();
    case v1::WorkerMessage::kDrainRequest:
      COORDD_RETURN_IF_ERROR(ValidateDrainRequest(message.drain_request()));
      desk_.OnRequest(session, message.drain_request(), Dismisser(turn), turn);
      return absl::OkStatus();
    case v1::WorkerMessage::kCollectiveFailed:
      COORDD_RETURN_IF_ERROR(ValidateCollectiveFailed(message.collective_failed()));
      OnCollectiveFailed(worker, message.collective_failed(), turn);
      return absl::OkStatus();
    case v1::WorkerMessage::kLeave:
      COORDD_RETURN_IF_ERROR(ValidateLeave(message.leave()));
      OnLeave(session, worker, message.leave(), turn);
      return absl::OkStatus();
    case v1::WorkerMessage::kTraceChunk:
      COORDD_RETURN_IF_ERROR(ValidateTraceChunk(message.trace_chunk()));
      trace_.OnChunk(worker.place.rank, message.trace_chunk(), turn);
      return absl::OkStatus();
    case v1::WorkerMessage::kJoin:
    case v1::WorkerMessage::kResumeReport:
      return absl::InvalidArgumentError("a second Join in one session");
    case v1::WorkerMessage::BODY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message without a body that this version knows");
}

// Members of an intact generation are those of its ranks (Depart and Suspend end it for all).
bool JobState::OnSharedReady(SessionRange from, const v1::WorkerMessage& message,
                             const Turn& turn) {
  const bool current = message.epoch() == ToInt(messages_.epoch()) && ToInt(generation()) != 0 &&
                       message.generation() == ToInt(generation());
  if (!current || !negotiating() || workers_.anyone_departs()) return false;
  GenerationState::RankGroup* group = generation_->state().GroupOf(from);
  if (group == nullptr || !ValidateTensorsReady(message.tensors_ready()).ok()) return false;
  if (!generation_->state().OnSharedReady(*group, message.tensors_ready(), turn)) return false;
  // Heartbeats renew leases. To note here whom a round has heard costs more than all else of it.
  if (turn.now - group->heard < options_.lease / kSharedHeard) return true;
  group->heard = turn.now;
  for (int32_t i = 0; i < from.count; ++i) {
    const SessionId session{ToInt(from.first) + i};
    workers_.at(session).last_heard = turn.now;
    rendezvous_.Heard(session, turn.now);
  }
  return true;
}

// Whether the message belongs to the sender's generation; deals with it if it does not.
bool JobState::IsCurrent(const Worker& worker, SessionId session, const v1::WorkerMessage& message,
                         const Turn& turn) {
  const absl::StatusOr<bool> timely = IsTimely(message, {.epoch = messages_.epoch(),
                                                         .generation = worker.generation,
                                                         .previous = worker.previous,
                                                         .damage = damage(),
                                                         .follows = reforming_.open()});
  if (!timely.ok()) {
    ProtocolError(session, timely.status(), turn);
    return false;
  }
  if (!*timely) OnStale(worker, message, turn.effects);
  return *timely;
}

void JobState::NoteExecuted(const Worker& worker, int64_t batches, int64_t bytes) {
  if (!generation_.has_value() || worker.generation != generation()) return;
  history_.executed().Tell({batches, bytes}, worker.executed_before_it);
}

void JobState::OnHeartbeat(SessionId session, Worker& worker, const v1::Heartbeat& heartbeat,
                           const Turn& turn) {
  worker.NoteHeartbeat(heartbeat, workers_.shared(), turn.now);
  if (heartbeat.has_device_use() || heartbeat.has_host_edges()) workers_.CountUse(worker);
  NoteExecuted(worker, heartbeat.batches_completed(), heartbeat.bytes_reduced());
  std::shared_ptr<v1::CoordinatorMessage> ack =
      messages_.LeaseAck(worker.generation, heartbeat, turn.now);
  if (ToInt(worker.generation) != 0 && negotiating()) {
    GenerationState& state = generation_->state();
    state.OnHeartbeat(worker.place.rank, heartbeat, turn, DeviceOf(worker));
    ToProto(state.ArrivalLag(worker.place.rank), ack->mutable_lease_ack()->mutable_arrival_lag());
    ack->mutable_lease_ack()->set_wants_stack(WantsStack(worker, state, turn.now));
    const std::string where = NoteStack(worker, heartbeat.stack(), state);
    if (!where.empty()) {
      Emit(Event::Kind::kRankStuck, absl::StrCat(Who(worker), " is at ", where), turn.effects);
    }
  }
  turn.effects.outgoing.push_back(Deliver{{session}, std::move(ack)});
}

void JobState::OnLeave(SessionId session, const Worker& worker, const v1::Leave& leave,
                       const Turn& turn) {
  NoteExecuted(worker, leave.batches_completed(), leave.bytes_reduced());
  const bool is_member = worker.generation != Generation{0};
  if (is_member && leave.failure().empty()) {
    reforming_.SaysGoodbye(worker.place.rank, turn.now);
    WatchReforming(turn);
  }
  const auto drained = desk_.DrainedText(worker.join.worker_id(), leave.drained());
  if (!leave.failure().empty()) {
    Depart(session, v1::DEPARTURE_CAUSE_PROGRAM_FAILED, leave.failure(), turn);
  } else if (drained.has_value()) {
    Depart(session, v1::DEPARTURE_CAUSE_DRAINED, *drained, turn);
  } else {
    Depart(session, v1::DEPARTURE_CAUSE_LEFT, leave.reason(), turn);
  }
  turn.effects.outgoing.push_back(CloseSession{session, absl::OkStatus()});
}

void JobState::OnCollectiveFailed(const Worker& worker, const v1::CollectiveFailed& failed,
                                  const Turn& turn) {
  Emit(Event::Kind::kFailureReported, "", turn.effects);
  if (workers_.anyone_departs()) return;  // whoever is departing is why
  const int32_t suspect = failed.suspect_rank();
  const bool is_rank = generation_->HasRank(suspect);
  const Worker* const blamed =
      is_rank ? workers_.Find(generation_->session_of(Rank{suspect})) : nullptr;
  const std::string reason = FailureText(worker, failed, is_rank, blamed,
                                         generation_->state().CommWaitOf(worker.place.rank));
  // A peer that is gone is as a rule why; what a data plane saw of it is often here first.
  if (damage() == Damage::kNone) {
    const bool silent = failed.suspect_silent() && is_rank;
    if (silent) generation_->blame().Report(worker.place.rank, Rank{suspect});
    reforming_.Failed(reason, silent, worker.place.rank, turn.now);
  } else if (!is_rank || !generation_->HasLeft(Rank{suspect})) {
    EndGeneration(Damage::kCollectiveFailed, reason, turn);
  }  // else its goodbye has crossed the report: who waits for it hears that, the others go on
}

void JobState::OnStale(const Worker& worker, const v1::WorkerMessage& message, Effects& effects) {
  Emit(
      Event::Kind::kStaleMessage,
      absl::StrCat("dropped a message of generation ", message.generation(), " from ", Who(worker)),
      effects);
}

void JobState::ProtocolError(SessionId session, const absl::Status& why, const Turn& turn) {
  Emit(Event::Kind::kProtocolError,
       absl::StrCat(Who(workers_.at(session)), " broke the protocol: ", why.message()),
       turn.effects);
  Expel(session, v1::DEPARTURE_CAUSE_PROTOCOL_ERROR, std::string(why.message()), why, turn);
}

void JobState::OnReturning(SessionId session, const Worker& worker,
                           const v1::WorkerMessage& message, const Turn& turn) {
  if (return_.IsUnaware(worker, message) && !message.has_leave())
    return OnStale(worker, message, turn.effects);
  auto drained = desk_.DrainedText(worker.join.worker_id(), message.leave().drained());
  if (!reforming_.wanted()) drained.reset();
  const auto failure = return_.OnMessage(session, message, drained, turn.effects);
  if (!failure.ok()) return ProtocolError(session, failure.status(), turn);
  if (failure->has_value()) return FailReturn(**failure, turn);
  ConcludeReturn(turn);
}

// Who is lost is told once, with the reason: a launcher that will tell it is a moment late at most.
// Where nobody waits for the news, nobody waits for the reason.
void JobState::OnSessionEnded(SessionId session, absl::string_view detail, const Turn& turn) {
  const Worker& worker = workers_.at(session);
  const bool may_be_explained = !worker.join.launch().empty() && !worker.exit.has_value();
  if (!may_be_explained || !negotiating() || worker.generation == Generation{0}) {
    if (IsExcused(turn.now) && worker.IsMember()) return Suspend(kSlept, turn);
    return Depart(session, v1::DEPARTURE_CAUSE_CONNECTION_LOST, detail, turn);
  }
  workers_.StreamEnded(session, turn.now + kExitWait, detail);
  reforming_.Explained();
}

void JobState::OnStreamsLost(const std::vector<SessionId>& sessions, absl::string_view detail,
                             const Turn& turn) {
  const bool has_members = std::any_of(sessions.begin(), sessions.end(), [&](SessionId session) {
    return workers_.at(session).IsMember();
  });
  if (has_members && durability_.outlives && MayBeTakenUp()) return Suspend(detail, turn);
  // Those who had come back have to come again, as all do who are waited for.
  if (return_.under_way() && has_members) return_.AskAgain(turn.now);
  for (SessionId session : sessions)
    if (Has(session)) OnSessionEnded(session, detail, turn);
}

absl::Status JobState::OnExits(const v1::ReportExitsRequest& request, int32_t* known,
                               const Turn& turn) {
  if (const absl::Status status = token_.Check(request.token()); !status.ok()) return status;
  for (const v1::LaunchedExit& exit : request.exits()) {
    if (NoteExit(exit, turn.effects)) ++*known;
  }
  WatchDeparting(turn);
  ConcludeReturn(turn);
  return absl::OkStatus();
}

bool JobState::NoteExit(const v1::LaunchedExit& in, Effects& effects) {
  const bool returns = return_.NoteExit(in);
  const bool is_in = workers_.NoteExit(in);
  if (returns || is_in)
    return true;  // the end of its stream, or its goodbye, is here or on its way
  const JobHistory::ProcessNews news = history_.NoteExit(in);
  if (news.sentence.has_value())
    Emit(Event::Kind::kProcessEnded, *news.sentence, effects, news.cause);
  return news.departed;
}

void JobState::WatchDeparting(const Turn& turn) {
  const std::vector<SessionId> due = workers_.DueToDepart(turn.now);
  if (!due.empty() && IsExcused(turn.now)) return Suspend(kSlept, turn);
  for (SessionId session : due) {
    const std::string detail = workers_.at(session).stream_end;
    Depart(session, v1::DEPARTURE_CAUSE_CONNECTION_LOST, detail, turn);
  }
}

void JobState::OnStoreCall(const StoreCall& call, const Turn& turn) {
  absl::Status status;
  if (ended()) {
    status = absl::NotFoundError(absl::StrCat("job ", messages_.name(), " has ended"));
  } else {
    status = token_.Check(call.token);
  }
  if (status.ok()) {
    kv_.Call(call, turn);
  } else {
    turn.effects.outgoing.push_back(StoreReply{.call = call.call, .status = status});
  }
}

void JobState::Dismiss(const DismissCall& call, const Turn& turn) {
  desk_.OnCall(call, Outlook(), Dismisser(turn), turn);
}

void JobState::OnDrainsStored(CallId call, const absl::Status& status, const Turn& turn) {
  desk_.OnStored(call, status, return_.under_way(), Dismisser(turn), turn);
}

void JobState::Restore(const v1::JobRecord& record, const v1::DrainRecord& drains,
                       const Turn& turn) {
  desk_.Restore(drains);
  token_.Restore(record);
  if (!record.running()) return;
  desk_.drains().Restore(drains);
  rendezvous_ =
      RendezvousState(LimitsOf(record, options_), Generation{record.generation()}, turn.now);
  reforming_ = Reforming(ReformingOf(FromProto(record.on_failure()), options_));
  started_ = true;
  forming_.Restore(record, *messages_.New(generation()));
  kv_.Open(generation());
  kv_.Await();
  store_return_.Begin();
  rendezvous_.Await();
  AwaitMembers("coordd was started again", turn.now);
  Emit(Event::Kind::kJobRestored,
       absl::StrCat("known from before: generation ", record.generation(), " had ",
                    MembersWho(static_cast<size_t>(record.members_size())),
                    DurationText(return_.NextDeadline() - turn.now), " to come back"),
       turn.effects);
}

void JobState::AwaitMembers(absl::string_view after, absl::Time now) {
  return_.Begin(forming_.record(), forming_.found(), after, now);
  history_.executed().NoteUncounted();
}

void JobState::OnPersisted(Generation number, const absl::Status& status, const Turn& turn) {
  if (status.ok()) {
    forming_.Stored();
    return Confirm(number, turn);
  }
  rendezvous_.Withdraw(number, turn.now + forming_.Failed(number, status));
  news_.Changed();
  Emit(Event::Kind::kNotStored, forming_.not_stored(), turn.effects);
}

// Nothing waits for it: who finds a job whose members do not come back ends it again.
void JobState::PersistEnd(Effects& effects) {
  if (!durability_.on) return;
  const std::string& name = messages_.name();
  v1::JobRecord record = token_.Record();
  record.set_generation(ToInt(rendezvous_.proposed()));
  effects.persist.push_back({name, Generation{0}, {JobWrite(name, record)}});
  if (desk_.TakeStored()) effects.persist.back().writes.push_back(DrainWrite(name, {}));
}

void JobState::Tick(const Turn& turn) {
  WatchDeparting(turn);
  desk_.Watch(Dismisser(turn), turn);
  ExpelExpired(turn);
  if (generation_.has_value()) {
    generation_->state().Tick(turn);
    if (const auto why = generation_->state().Hopeless(turn.now))
      EndGeneration(Damage::kCollectiveFailed, *why, turn);
  }
  if (ToInt(trace_.lane()) != 0 && negotiating() &&
      !generation_->state().IsScheduled(trace_.lane()))
    trace_.EndEarly("the program has stopped repeating its steps", turn);
  trace_.Tick(turn);
  WatchReturn(turn);
  WatchReforming(turn);
  turn.Bury(workers_.shared().process_sets.TakeDead());
  Propose(turn);
  news_.Tell(
      {.members_may_act = reforming_.wanted() && !reforming_.limit_reached() && negotiating(),
       .reason =
           forming_.not_stored().empty() ? rendezvous_.Reason(turn.now) : forming_.not_stored()},
      workers_, messages_, turn);
}

absl::Time JobState::NextDeadline() const {
  if (forming_.making()) return absl::InfinitePast();
  if (kv_.awaits() && !store_return_.under_way()) return absl::InfinitePast();
  absl::Time next = rendezvous_.NextDeadline();
  if (rendezvous_.phase() == RendezvousPhase::kGathering)
    next = std::max(next, desk_.NextLeaving());
  if (generation_.has_value()) next = std::min(next, generation_->state().NextDeadline());
  next = std::min(next, news_.NextDeadline());
  next = std::min(
      {next, return_.NextDeadline(), workers_.NextDeparture(), desk_.drains().NextDeadline()});
  return std::min({next, trace_.NextDeadline(), reforming_.NextDeadline()});
}

void JobState::ExpelExpired(const Turn& turn) {
  for (SessionId session : rendezvous_.Expired(turn.now, turn.room_for_silent)) {
    const absl::Duration silent = turn.now - workers_.at(session).last_heard;
    const std::string detail =
        absl::StrCat("it was silent for ", DurationText(silent), ", its lease is ",
                     absl::FormatDuration(options_.lease));
    Expel(session, v1::DEPARTURE_CAUSE_LEASE_EXPIRED, detail,
          absl::FailedPreconditionError(
              absl::StrCat("the lease has run out: ", detail, "; join again")),
          turn);
  }
}

void JobState::Forgive(absl::Duration gap, absl::Time now) {
  desk_.drains().Forgive(gap);
  reforming_.Forgive(gap);
  rendezvous_.Forgive(gap);
  return_.Forgive(gap, now);
  if (generation_.has_value()) generation_->state().Forgive(gap);
}

void JobState::Stop(const StopRequested& stop, const Turn& turn) {
  const bool had_workers = !workers_.empty();
  const bool was_running = !ended();
  // What nobody remembers nobody can resume.
  const bool returns = durability_.outlives && stop.resume_within > absl::ZeroDuration();
  // In the status as in the message: gRPC may drop a message that a failing status follows.
  const absl::Status stopping = absl::UnavailableError(stop.reason);
  // Whoever could resume has to know that it is not meant to.
  const bool final = durability_.outlives && !returns;
  const absl::Status ending = final ? absl::AbortedError(stop.reason) : stopping;
  if (generation_.has_value()) generation_->End(turn);
  messages_.Shutdown(workers_, stop, returns, turn.effects);
  trace_.Fail(stopping, turn.effects);
  desk_.Fail(turn.effects);
  turn.Bury(kv_.Clear(stopping, turn.effects));
  turn.Bury(store_return_.Abandon());
  for (const auto& [session, worker] : workers_) {
    // Who waits tries again, at another coordd perhaps.
    const bool waits = worker.generation == Generation{0};
    turn.effects.outgoing.push_back(CloseSession{session, waits ? stopping : ending});
    rendezvous_.Remove(session, turn.now);
  }
  workers_.Clear();
  reforming_.Ended();
  forming_.Abandon(turn);
  survivors_.ForgetSets(turn);
  turn.Bury(return_.Abandon());
  ForgetGeneration(turn);
  news_.Forget();
  if (had_workers && !returns) Emit(Event::Kind::kJobEnded, stopping.message(), turn.effects);
  if (was_running && !returns) PersistEnd(turn.effects);
  started_ = false;
}

void JobState::CancelCall(CallId call, Effects& effects) {
  kv_.Cancel(call);
  trace_.Cancel(call, effects);
}

absl::Status JobState::Trace(const TraceCall& call, const Turn& turn) {
  if (!negotiating()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", messages_.name(), " is not running: ", rendezvous_.Reason(turn.now)));
  }
  COORDD_RETURN_IF_ERROR(trace_.Begin(call, *messages_.New(generation()),
                                      generation_->Traced(workers_),
                                      generation_->state().StepLane(), turn));
  Emit(Event::Kind::kTraced, TracedText(call.caller.get()), turn.effects);
  return absl::OkStatus();
}

}  // namespace coordd
