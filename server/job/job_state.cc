#include "server/job/job_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/duration_text.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// Of a lease: so much earlier a member may be given up that has been heard with others of its node.
constexpr int kSharedHeard = 64;

}  // namespace

JobState::JobState(std::string name, const ServerOptions& options, const Durability& durability,
                   Epoch epoch, Generation last, absl::Time now)
    : name_(std::move(name)),
      options_(options),
      durability_(durability),
      epoch_(epoch),
      token_(name_, durability.cluster_id),
      rendezvous_(RendezvousOptions{}, last, now),
      kv_(name_, KvBounds{.max_keys = options.max_store_keys_per_job,
                          .max_bytes = options.max_store_bytes_per_job}) {}

void JobState::OnMessage(SessionId session, const v1::WorkerMessage& message, const Turn& turn) {
  Worker& worker = workers_.at(session);
  worker.last_heard = turn.now;
  if (IsReturned(worker)) return OnResuming(session, worker, message, turn);
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
      return OnNegotiation(worker.place.rank, message, turn);
    case v1::WorkerMessage::kRecoveryReport:
      COORDD_RETURN_IF_ERROR(ValidateRecoveryReport(message.recovery_report()));
      return OnRecoveryReport(session, worker, message.recovery_report(), turn);
    case v1::WorkerMessage::kChangeMembers:
      OnChangeMembers(worker, turn);
      return absl::OkStatus();
    case v1::WorkerMessage::kDrainRequest:
      COORDD_RETURN_IF_ERROR(ValidateDrainRequest(message.drain_request()));
      OnDrainRequest(session, worker, message.drain_request(), turn);
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

// What is the generation's alone. Wrong is wrong, also when nothing is negotiated any more.
absl::Status JobState::OnNegotiation(Rank rank, const v1::WorkerMessage& message,
                                     const Turn& turn) {
  if (message.has_tensors_ready()) {
    COORDD_RETURN_IF_ERROR(ValidateTensorsReady(message.tensors_ready()));
  } else if (message.has_tensors_withdrawn()) {
    COORDD_RETURN_IF_ERROR(ValidateTensorsWithdrawn(message.tensors_withdrawn()));
  } else if (message.has_process_set_request()) {
    COORDD_RETURN_IF_ERROR(ValidateProcessSetRequest(message.process_set_request()));
  }
  if (!negotiating()) return absl::OkStatus();
  GenerationState& state = generation_->state();
  switch (message.body_case()) {
    case v1::WorkerMessage::kTensorsReady:
      return state.OnTensorsReady(rank, message.tensors_ready(), turn);
    case v1::WorkerMessage::kTensorsWithdrawn:
      state.OnTensorsWithdrawn(rank, message.tensors_withdrawn(), turn);
      return absl::OkStatus();
    case v1::WorkerMessage::kProcessSetRequest:
      return state.OnProcessSetRequest(rank, message.process_set_request(), turn);
    case v1::WorkerMessage::kScheduleAck:
      return state.OnScheduleAck(rank, message.schedule_ack());
    case v1::WorkerMessage::kFreezeReply:
      return state.OnFreezeReply(rank, message.freeze_reply(), turn);
    case v1::WorkerMessage::kScheduleFinished:
      return state.OnScheduleFinished(rank, message.schedule_finished());
    default:
      COORDD_RETURN_IF_ERROR(ValidateScheduleBreak(message.schedule_break()));
      return state.OnScheduleBreak(rank, message.schedule_break(), turn.effects);
  }
}

// Members of an intact generation are those of its ranks (Depart and Suspend end it for all).
bool JobState::OnSharedReady(SessionRange from, const v1::WorkerMessage& message,
                             const Turn& turn) {
  const bool current = message.epoch() == ToInt(epoch_) && ToInt(generation()) != 0 &&
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
bool JobState::IsCurrent(Worker& worker, SessionId session, const v1::WorkerMessage& message,
                         const Turn& turn) {
  const int64_t epoch = message.epoch();
  // Of a survivor that waits: the one that it was in.
  const int64_t known = std::max(ToInt(worker.generation), ToInt(worker.previous));
  if (epoch > ToInt(epoch_) || message.generation() > known) {
    ProtocolError(session,
                  absl::InvalidArgumentError(
                      absl::StrCat("a message of epoch ", epoch, " and generation ",
                                   message.generation(), ", which do not exist yet: the epoch is ",
                                   ToInt(epoch_), " and the sender's generation ", known)),
                  turn);
    return false;
  }
  // A worker that has not seen its Membership yet still sends what does not depend on one.
  const bool timeless = message.has_leave() || message.has_heartbeat() || message.has_join() ||
                        message.body_case() == v1::WorkerMessage::BODY_NOT_SET;
  const bool from_before_membership = epoch == 0 || epoch == ToInt(epoch_);
  if (timeless && message.generation() == 0 && from_before_membership) return true;
  // A survivor says goodbye, or that it lives, while it waits; and a goodbye may have crossed the
  // next Membership.
  if (worker.previous != Generation{0} && epoch == ToInt(epoch_)) {
    const bool waits = worker.generation == Generation{0};
    if (message.has_leave() || message.has_drain_request()) return true;
    if (message.has_heartbeat() && waits) return true;
    if (waits) {
      OnStale(worker, message, turn.effects);
      return false;
    }
  }
  const bool stale = epoch != ToInt(epoch_) || message.generation() < ToInt(worker.generation);
  if (stale) {
    OnStale(worker, message, turn.effects);
    return false;
  }
  if (!timeless && ToInt(worker.generation) == 0) {
    ProtocolError(session,
                  absl::InvalidArgumentError("a message about collectives before any Membership"),
                  turn);
    return false;
  }
  // What was under way when the generation ended. Only a failure can still make things worse.
  const bool expected = damage() == Damage::kNone
                            ? !message.has_recovery_report()
                            : message.has_collective_failed() || message.has_trace_chunk() ||
                                  message.has_drain_request() ||
                                  (message.has_recovery_report() && reforming_.open());
  if (!timeless && !expected) {
    OnStale(worker, message, turn.effects);
    return false;
  }
  return true;
}

void JobState::NoteExecuted(const Worker& worker, int64_t batches, int64_t bytes) {
  if (!generation_.has_value() || worker.generation != generation()) return;
  history_.executed.Tell({batches, bytes});
}

ExecutedCounts::Count JobState::PlannedInGeneration() const {
  return {generation_->state().batches_planned(), generation_->state().bytes_planned()};
}

ExecutedCounts::Count JobState::ExecutedInGeneration() const {
  if (!generation_.has_value()) return {};
  return history_.executed.InGeneration(PlannedInGeneration());
}

void JobState::OnHeartbeat(SessionId session, Worker& worker, const v1::Heartbeat& heartbeat,
                           const Turn& turn) {
  const double seconds = absl::ToDoubleSeconds(turn.now - worker.heartbeat_at);
  if (worker.heartbeat_at != absl::InfinitePast() && seconds > 0) {
    const double bytes = static_cast<double>(heartbeat.bytes_reduced()) -
                         static_cast<double>(worker.heartbeat.bytes_reduced());
    worker.bytes_per_second = std::max(0.0, bytes / seconds);
  }
  worker.heartbeat = heartbeat;
  worker.heartbeat_before = worker.heartbeat_at;
  worker.heartbeat_at = turn.now;
  if (heartbeat.has_device_use()) {
    worker.device_use = heartbeat.device_use();
    worker.heartbeat.clear_device_use();
  }
  worker.heartbeat.clear_stack();
  NoteExecuted(worker, heartbeat.batches_completed(), heartbeat.bytes_reduced());
  if (ToInt(worker.generation) != 0 && negotiating())
    generation_->state().OnHeartbeat(worker.place.rank, heartbeat, turn);
  std::shared_ptr<v1::CoordinatorMessage> ack = NewMessage(worker.generation);
  ack->mutable_lease_ack()->set_echoed_sent_ns(heartbeat.sent_ns());
  ToProto(options_.lease, ack->mutable_lease_ack()->mutable_lease());
  ack->mutable_lease_ack()->set_coordd_ns(absl::ToUnixNanos(turn.now));
  if (ToInt(worker.generation) != 0 && negotiating()) {
    ToProto(generation_->state().ArrivalLag(worker.place.rank),
            ack->mutable_lease_ack()->mutable_arrival_lag());
    ack->mutable_lease_ack()->set_wants_stack(WantsStack(worker, turn.now));
    OnStack(worker, heartbeat.stack(), turn.effects);
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
  const Drain* drain = drains_.Find(worker.join.worker_id());
  if (!leave.failure().empty()) {
    Depart(session, v1::DEPARTURE_CAUSE_PROGRAM_FAILED, leave.failure(), turn);
  } else if (drain != nullptr || leave.drained()) {
    const std::string detail = DrainedText(drain != nullptr ? *drain : Drain{"its own process"});
    Depart(session, v1::DEPARTURE_CAUSE_DRAINED, detail, turn);
  } else {
    Depart(session, v1::DEPARTURE_CAUSE_LEFT, leave.reason(), turn);
  }
  turn.effects.outgoing.push_back(CloseSession{session, absl::OkStatus()});
}

void JobState::OnCollectiveFailed(const Worker& worker, const v1::CollectiveFailed& failed,
                                  const Turn& turn) {
  if (workers_.anyone_departs()) return;  // whoever is departing is why
  std::string reason = absl::StrCat(
      Who(worker), " reported that ",
      failed.tensor().empty() ? "a collective" : "tensor " + failed.tensor(), " failed");
  if (!failed.detail().empty()) absl::StrAppend(&reason, ": ", failed.detail());
  const int32_t suspect = failed.suspect_rank();
  if (suspect >= 0 && suspect < generation_->state().size()) {
    const Worker* const blamed = workers_.Find(generation_->session_of(Rank{suspect}));
    absl::StrAppend(&reason, "; it blames ",
                    blamed == nullptr ? absl::StrCat("rank ", suspect) : Who(*blamed));
  }
  // A peer that is gone is as a rule why, and its departure says more: what a data plane saw of it
  // (a connection that ended) is often here first.
  if (damage() == Damage::kNone) {
    const bool silent =
        failed.suspect_silent() && suspect >= 0 && suspect < generation_->state().size();
    if (silent) generation_->blame().Report(worker.place.rank, Rank{suspect});
    reforming_.Failed(reason, silent, worker.place.rank, turn.now);
  } else {
    EndGeneration(Damage::kCollectiveFailed, reason, turn);
  }
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
  Depart(session, v1::DEPARTURE_CAUSE_PROTOCOL_ERROR, why.message(), turn);
  turn.effects.outgoing.push_back(CloseSession{session, why});
}

void JobState::OnStoreCall(const StoreCall& call, Effects& effects) {
  absl::Status status;
  if (ended()) {
    status = absl::NotFoundError(absl::StrCat("job ", name_, " has ended"));
  } else {
    status = token_.Check(call.token);
  }
  if (status.ok()) {
    kv_.Call(call, effects);
  } else {
    effects.outgoing.push_back(StoreReply{.call = call.call, .status = status});
  }
}

void JobState::Tick(const Turn& turn) {
  WatchDeparting(turn);
  WatchDrains(turn);
  for (SessionId session : rendezvous_.Expired(turn.now)) {
    const absl::Duration silent = turn.now - workers_.at(session).last_heard;
    const std::string detail =
        absl::StrCat("it was silent for ", DurationText(silent), ", its lease is ",
                     absl::FormatDuration(options_.lease));
    Depart(session, v1::DEPARTURE_CAUSE_LEASE_EXPIRED, detail, turn);
    turn.effects.outgoing.push_back(
        CloseSession{session, absl::FailedPreconditionError(absl::StrCat(
                                  "the lease has run out: ", detail, "; join again"))});
  }
  if (generation_.has_value()) {
    generation_->state().Tick(turn);
    if (const auto why = generation_->state().Hopeless(turn.now))
      EndGeneration(Damage::kCollectiveFailed, *why, turn);
  }
  if (ToInt(trace_.lane()) != 0 && negotiating() &&
      !generation_->state().IsScheduled(trace_.lane()))
    trace_.EndEarly("the program has stopped repeating its steps", turn);
  trace_.Tick(turn);
  WatchResume(turn);
  WatchReforming(turn);
  Propose(turn);
  TellWaiting(turn);
}

absl::Time JobState::NextDeadline() const {
  absl::Time next = rendezvous_.NextDeadline();
  if (rendezvous_.phase() == RendezvousPhase::kGathering) next = std::max(next, NextLeaving());
  if (generation_.has_value()) next = std::min(next, generation_->state().NextDeadline());
  next = std::min(next, news_.NextDeadline());
  if (resume_.has_value()) next = std::min(next, resume_->deadline());
  next = std::min({next, workers_.NextDeparture(), drains_.NextDeadline()});
  return std::min({next, trace_.NextDeadline(), reforming_.NextDeadline()});
}

void JobState::Forgive(absl::Duration gap, absl::Time now) {
  excused_until_ = now + options_.lease;
  drains_.Forgive(gap);
  reforming_.Forgive(gap);
  rendezvous_.Forgive(gap);
  // Whoever had come back may have lost patience again.
  if (resume_.has_value()) resume_->Forgive(gap, now + options_.resume_grace);
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
  if (generation_.has_value()) generation_->state().End(turn.effects);
  std::map<Generation, std::vector<SessionId>> sessions;
  for (const auto& [session, worker] : workers_) sessions[worker.generation].push_back(session);
  for (const auto& [generation, to] : sessions) {
    std::shared_ptr<v1::CoordinatorMessage> message = NewMessage(generation);
    message->mutable_shutdown()->set_reason(stop.reason);
    if (returns) ToProto(stop.resume_within, message->mutable_shutdown()->mutable_resume_within());
    turn.effects.outgoing.push_back(Deliver{to, std::move(message)});
  }
  trace_.Fail(stopping, turn.effects);
  FailDismissals(turn.effects);
  kv_.Clear(stopping, turn.effects);
  for (const auto& [session, worker] : workers_) {
    // Who waits tries again, at another coordd perhaps.
    const bool waits = worker.generation == Generation{0};
    turn.effects.outgoing.push_back(CloseSession{session, waits ? stopping : ending});
    rendezvous_.Remove(session, turn.now);
  }
  workers_.Clear();
  reforming_.Ended();
  resume_.reset();
  ForgetGeneration();
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
        absl::StrCat("job ", name_, " is not running: ", rendezvous_.Reason(turn.now)));
  }
  std::vector<TraceState::Member> by_rank;
  for (int32_t rank = 0; rank < generation_->state().size(); ++rank) {
    const SessionId session = generation_->state().session_of(Rank{rank});
    const v1::Join& join = workers_.at(session).join;
    by_rank.push_back({session, join.traces(), join.host().hostname(), join.pid()});
  }
  COORDD_RETURN_IF_ERROR(trace_.Begin(call, *NewMessage(generation()), std::move(by_rank),
                                      generation_->state().StepLane(), turn));
  Emit(Event::Kind::kTraced, "an operator traces what its ranks execute", turn.effects);
  return absl::OkStatus();
}

std::shared_ptr<v1::CoordinatorMessage> JobState::NewMessage(Generation generation) const {
  auto message = std::make_shared<v1::CoordinatorMessage>();
  message->set_epoch(ToInt(epoch_));
  message->set_generation(ToInt(generation));
  return message;
}

void JobState::Emit(Event::Kind kind, absl::string_view text, Effects& effects,
                    v1::DepartureCause cause) const {
  Event event{.kind = kind, .job = name_};
  event.generation = ToInt(generation());
  event.cause = cause;
  event.text = OneLine(text);
  effects.events.push_back(std::move(event));
}

}  // namespace coordd
