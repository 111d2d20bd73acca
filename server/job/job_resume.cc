// A generation that goes on after coordd was started again, or has slept: its members come back one
// after the other, and nothing happens before all have. docs/design/recovery.md, part B.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/duration_text.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "server/job/job_state.h"
#include "server/model/heartbeat_pace.h"
#include "server/model/process_exit.h"
#include "server/model/validate_message.h"

namespace coordd {

void JobState::AwaitMembers(absl::string_view after, absl::Time now) {
  resume_.emplace(forming_.record(), now + options_.lease + options_.resume_grace,
                  ResumeBeginning{now, std::string(after)});
  history_.executed.NoteUncounted();
}

// The generation goes on, or another one follows it, and its member wants its place back: it has
// lost its stream, whatever is known of that here. Before it had heard of the generation, perhaps;
// but the same process with the same id is mostly a mistake, unless coordd has slept.
bool JobState::HasLostItsStream(const v1::Join& join, absl::Time now) {
  if (!durability_.outlives || !MayBeTakenUp() || !token_.Check(join.token()).ok()) return false;
  if (!join.has_resume() && !IsExcused(now)) return false;
  const auto session = SessionOf(join.worker_id());
  if (!session.has_value() || !workers_.at(*session).IsMember()) return false;
  const ResumeState members(forming_.record(), absl::InfiniteFuture());
  if (join.has_resume()) return members.Check(join, durability_.cluster_id, epoch_).ok();
  const auto rank = members.Find(join.worker_id());
  return rank.has_value() && members.member(*rank).pid() == join.pid();
}

// As if coordd had been started again, but for what it knows of the past: who has departed does not
// come back. A generation that is being stored is never announced.
void JobState::Suspend(absl::string_view after, const Turn& turn) {
  const absl::Status why =
      absl::UnavailableError(absl::StrCat("coordd takes up generation ", ToInt(generation()),
                                          " of job ", name_, " anew, since ", after));
  std::vector<v1::LaunchedExit> ended;
  std::set<std::string> members;
  for (const auto& [session, worker] : workers_) {
    turn.effects.outgoing.push_back(CloseSession{session, why});
    if (worker.IsMember()) members.insert(worker.join.worker_id());
    if (!worker.exit.has_value()) continue;
    ended.emplace_back().set_launch(worker.join.launch());
    *ended.back().mutable_exit() = *worker.exit;
  }
  trace_.EndEarly(std::string(why.message()), turn);
  workers_.Clear();
  if (generation_.has_value()) generation_->state().End(turn.effects);
  generation_.reset();
  left_sets_.reset();
  reforming_.Suspended();
  rendezvous_.Suspend(turn.now);
  kv_.Open(generation());
  news_.Forget();
  drains_.Suspend();
  AwaitMembers(after, turn.now);
  NoteDeparted(members);
  Emit(Event::Kind::kJobRestored,
       absl::StrCat("generation ", ToInt(generation()), " is taken up anew, since ", after,
                    ": its ", members.size(), " members have ",
                    DurationText(resume_->deadline() - turn.now), " to come back"),
       turn.effects);
  for (const v1::LaunchedExit& exit : ended) NoteLostMember(exit);
}

// All but these have: the generation is over, whoever has heard that.
void JobState::NoteDeparted(const std::set<std::string>& members) {
  for (int32_t rank = 0; rank < resume_->size(); ++rank) {
    const std::string& id = resume_->member(Rank{rank}).worker_id();
    if (members.contains(id)) continue;
    v1::Departure gone =
        DepartureOf(Rank{rank}, v1::DEPARTURE_CAUSE_CONNECTION_LOST, "was lost some time ago");
    for (const v1::Departure& departure : history_.departures)
      if (departure.worker_id() == id && departure.rank() <= rank) gone = departure;
    gone.set_rank(rank);
    resume_->NoteLost(gone, reforming_.reason());
  }
}

// One that has ended well may have said goodbye, of which the others know; one whose end nobody saw
// may live.
bool JobState::NoteLostMember(const v1::LaunchedExit& in) {
  if (in.launch().empty() || EndedWell(in.exit()) || in.exit().unreachable()) return false;
  for (int32_t rank = 0; rank < resume_->size(); ++rank) {
    if (resume_->member(Rank{rank}).launch() != in.launch()) continue;
    const std::string what = LossText(in.exit());
    v1::Departure departure = DepartureOf(Rank{rank}, v1::DEPARTURE_CAUSE_CONNECTION_LOST, what);
    departure.set_launch(in.launch());
    *departure.mutable_exit() = in.exit();
    resume_->NoteLost(departure, absl::StrCat(Who(Rank{rank}), " ", what));
    return true;
  }
  return false;
}

std::string JobState::Who(Rank rank) const {
  const v1::MemberRecord& member = resume_->member(rank);
  return absl::StrCat("rank ", ToInt(rank), " (host ", member.hostname(), ", pid ", member.pid(),
                      ")");
}

absl::Status JobState::RefuseResume(const v1::Join& join) {
  if (started_) COORDD_RETURN_IF_ERROR(token_.Check(join.token()));  // before it is told anything
  const int64_t theirs = join.resume().generation();
  if (damage() != Damage::kNone && theirs == ToInt(generation()))
    return absl::FailedPreconditionError(generation_->reason());
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", join.worker_id(), " cannot resume: generation ", theirs, " of job ", name_,
      theirs == ToInt(generation()) && generation_.has_value() ? " goes on without it"
                                                               : " is over"));
}

// A member, or somebody who says that it is one.
absl::Status JobState::JoinToResume(SessionId session, const v1::Join& join, const Turn& turn) {
  COORDD_RETURN_IF_ERROR(token_.Check(join.token()));
  if (join.has_resume()) {
    COORDD_ASSIGN_OR_RETURN(const Rank rank, resume_->Check(join, durability_.cluster_id, epoch_));
    COORDD_RETURN_IF_ERROR(resume_->CheckMayReturn(rank));
    AddReturned(session, join, rank, turn);
    if (join.resume().generation() == ToInt(generation())) {
      resume_->Came(rank, session, join.resume().position());
      return absl::OkStatus();
    }
    // It had reported what became of its generation, and has not heard of this one.
    resume_->Came(rank, session, std::nullopt);
    if (resume_->complete()) FinishResume(turn);
    return absl::OkStatus();
  }
  const Rank rank = *resume_->Find(join.worker_id());
  if (resume_->member(rank).pid() != join.pid()) {
    const std::string what = absl::StrCat("was replaced: a newer process, pid ", join.pid(),
                                          ", joined with its worker id");
    FailResume(Damage::kLost, absl::StrCat("rank ", ToInt(rank), " ", what),
               {DepartureOf(rank, v1::DEPARTURE_CAUSE_EVICTED, what)}, turn);
    return Join(session, join, turn);
  }
  COORDD_RETURN_IF_ERROR(resume_->CheckMayReturn(rank));
  // It has not heard of the generation: it is told again.
  AddReturned(session, join, rank, turn);
  resume_->Came(rank, session, std::nullopt);
  if (resume_->complete()) FinishResume(turn);
  return absl::OkStatus();
}

void JobState::AddReturned(SessionId session, const v1::Join& join, Rank rank, const Turn& turn) {
  // Of the same process, and its end has not been seen. Which of the two is the newer one nobody
  // can tell: on a stream that was given up a Join may come late. Then the worker comes again.
  if (const auto earlier = resume_->session_of(rank)) {
    DropReturned(*earlier);
    turn.effects.outgoing.push_back(
        CloseSession{*earlier, absl::UnavailableError("another stream of this worker has come")});
  }
  Worker worker;
  worker.join = join;
  worker.join.clear_token();
  worker.join.clear_resume();
  worker.generation = generation();
  worker.place.rank = rank;
  worker.last_heard = turn.now;
  workers_.Add(session, std::move(worker));
}

void JobState::DropReturned(SessionId session) {
  resume_->Gone(workers_.at(session).place.rank);
  workers_.Remove(session);
}

void JobState::OnResuming(SessionId session, const Worker& worker, const v1::WorkerMessage& message,
                          const Turn& turn) {
  const Rank rank = worker.place.rank;
  const bool unaware = message.generation() != ToInt(generation()) || resume_->is_new(rank);
  if (unaware && !message.has_leave()) {
    OnStale(worker, message, turn.effects);  // it has not heard of the generation yet
    return;
  }
  absl::Status status;
  switch (message.body_case()) {
    case v1::WorkerMessage::kResumeReport:
      status = resume_->Report(rank, message.resume_report());
      if (status.ok() && resume_->complete()) FinishResume(turn);
      break;
    case v1::WorkerMessage::kLeave: {
      status = ValidateLeave(message.leave());
      if (!status.ok()) break;
      if (!message.leave().failure().empty())
        return LeaveFailed(session, message.leave().failure(), turn);
      if (const Drain* drain = drains_.Find(worker.join.worker_id());
          (drain != nullptr || message.leave().drained()) && reforming_.wanted()) {
        return LeaveDrained(session, drain != nullptr ? *drain : Drain{"its own process"}, turn);
      }
      const std::string what = absl::StrCat("left", message.leave().reason().empty() ? "" : ": ",
                                            message.leave().reason());
      const v1::Departure departure = DepartureOf(rank, v1::DEPARTURE_CAUSE_LEFT, what);
      const std::string reason = absl::StrCat(Who(worker), " ", what);
      DropReturned(session);
      turn.effects.outgoing.push_back(CloseSession{session, absl::OkStatus()});
      FailResume(Damage::kLeft, reason, {departure}, turn);
      return;
    }
    case v1::WorkerMessage::kHeartbeat:
      break;  // its lease begins when all are back
    default:
      status = absl::InvalidArgumentError(
          "a message before Resumed that is no ResumeReport and no Leave");
  }
  if (!status.ok()) ProtocolError(session, status, turn);
}

// The others are waited for: for them it is a generation that is over, and another one follows.
void JobState::LeaveDrained(SessionId session, const Drain& drain, const Turn& turn) {
  const Worker& worker = workers_.at(session);
  const Rank rank = worker.place.rank;
  const std::string what = DrainedText(drain);
  const std::string reason = absl::StrCat(Who(worker), " ", what);
  v1::Departure departure = DepartureOf(rank, v1::DEPARTURE_CAUSE_DRAINED, what);
  departure.set_launch(worker.join.launch());
  DropReturned(session);
  resume_->Left(rank, departure, reason);
  turn.effects.outgoing.push_back(CloseSession{session, absl::OkStatus()});
  if (resume_->complete()) FinishResume(turn);
}

// For the others it is one that will not come back.
void JobState::LeaveFailed(SessionId session, absl::string_view failure, const Turn& turn) {
  const Worker& worker = workers_.at(session);
  const Rank rank = worker.place.rank;
  const std::string what = absl::StrCat("failed: ", failure);
  v1::Departure departure = DepartureOf(rank, v1::DEPARTURE_CAUSE_PROGRAM_FAILED, what);
  departure.set_launch(worker.join.launch());
  departure.set_failure(std::string(failure));
  const std::string reason = absl::StrCat(Who(worker), " ", what);
  DropReturned(session);
  resume_->NoteLost(departure, reason);
  turn.effects.outgoing.push_back(CloseSession{session, absl::OkStatus()});
  if (resume_->complete()) FinishResume(turn);
}

void JobState::WatchResume(const Turn& turn) {
  if (!resume_.has_value() || turn.now < resume_->deadline()) return;
  std::vector<v1::Departure> departures;
  size_t known = 0;  // of them, those who have said goodbye
  std::string who;
  const std::string what = absl::StrCat("was lost: it did not come back within ",
                                        DurationText(turn.now - resume_->beginning().at), " after ",
                                        resume_->beginning().after);
  for (Rank rank : resume_->Missing()) {
    if (const v1::Departure* left = resume_->left(rank)) {
      departures.push_back(*left);
      ++known;
      continue;
    }
    departures.push_back(DepartureOf(rank, v1::DEPARTURE_CAUSE_LEASE_EXPIRED, what));
    if (who.empty()) who = Who(rank);
    // It has come, and has not said where it is: all are told that it is lost, and so it is.
    if (const auto session = resume_->session_of(rank)) {
      DropReturned(*session);
      turn.effects.outgoing.push_back(CloseSession{
          *session, absl::FailedPreconditionError(absl::StrCat(Who(rank), " ", what))});
    }
  }
  const size_t more = departures.size() - known - 1;
  FailResume(Damage::kLost,
             absl::StrCat(who, more == 0 ? "" : absl::StrCat(" and ", more, " more"), " ", what),
             departures, turn);
}

v1::Departure JobState::DepartureOf(Rank rank, v1::DepartureCause cause,
                                    absl::string_view what) const {
  const v1::MemberRecord& member = resume_->member(rank);
  v1::Departure departure;
  departure.set_rank(ToInt(rank));
  departure.set_worker_id(member.worker_id());
  departure.set_hostname(member.hostname());
  departure.set_pid(member.pid());
  departure.set_cause(cause);
  departure.set_detail(Truncated(OneLine(what), kMaxReasonBytes));
  return departure;
}

// Of the ranks as they were.
absl::StatusOr<Topology> JobState::ResumedTopology() const {
  std::vector<TopologyMember> members;
  for (int32_t rank = 0; rank < resume_->size(); ++rank) {
    TopologyMember member;
    member.worker_id = resume_->member(Rank{rank}).worker_id();
    member.node_id = resume_->member(Rank{rank}).node_id();
    members.push_back(std::move(member));
  }
  Topology topology = OrderRanks(members);
  for (size_t rank = 0; rank < topology.member_of_rank.size(); ++rank) {
    if (topology.member_of_rank[rank] == rank) continue;
    return absl::InternalError("the ranks of a node were not consecutive in what was stored");
  }
  return topology;
}

void JobState::DeliverResumed(SessionId session, const ResumedGeneration& resumed,
                              Effects& effects) const {
  std::shared_ptr<v1::CoordinatorMessage> message = NewMessage(generation());
  v1::Resumed& told = *message->mutable_resumed();
  told.set_session(ToInt(session));
  const auto members = static_cast<int32_t>(resumed.missed.size());
  ToProto(HeartbeatInterval(options_, members), told.mutable_heartbeat_interval());
  ToProto(options_.lease, told.mutable_lease());
  told.set_slots(generation_->state().identity().slots);
  told.set_wants_schedule_finished(generation_->state().wants_schedule_finished());
  for (const ResumedGeneration::Removal& removal : resumed.removals)
    told.add_open_ends(removal.position);
  effects.outgoing.push_back(Deliver{{session}, std::move(message)});
}

void JobState::FinishResume(const Turn& turn) {
  if (const auto over = resume_->over()) {
    absl::string_view reason = *over;
    absl::ConsumePrefix(&reason, absl::StrCat("generation ", ToInt(generation()), " ended: "));
    const std::vector<v1::Departure> lost = resume_->Lost();
    FailResume(lost.empty() ? Damage::kCollectiveFailed : Damage::kLost, std::string(reason), lost,
               turn);
    return;
  }
  absl::StatusOr<ResumedGeneration> resumed = resume_->Merged();
  absl::StatusOr<Topology> topology = ResumedTopology();
  absl::Status status = resumed.ok() ? topology.status() : resumed.status();
  std::vector<SessionId> by_rank;
  for (int32_t rank = 0; rank < resume_->size(); ++rank) {
    by_rank.push_back(*resume_->session_of(Rank{rank}));
    Worker& worker = workers_.at(by_rank.back());
    if (topology.ok()) worker.place = topology->places[static_cast<size_t>(rank)];
    worker.last_heard = turn.now;
  }
  if (status.ok()) {
    generation_.emplace(IdentityOf(by_rank), options_, by_rank, /*knows_sets=*/true);
    status = generation_->state().Restore(*resumed, turn.now);
  }
  if (!status.ok()) {
    generation_.reset();
    FailResume(Damage::kCollectiveFailed,
               absl::StrCat("it could not go on after ", resume_->beginning().after, ": ",
                            status.message()),
               {}, turn);
    return;
  }
  const ResumeState back = *std::exchange(resume_, std::nullopt);
  const Inheritance inherited{back.repairs(), back.process_sets()};
  rendezvous_.Resume(by_rank, turn.now);
  for (int32_t rank = 0; rank < back.size(); ++rank) {
    const SessionId session = by_rank[static_cast<size_t>(rank)];
    const bool is_new = back.is_new(Rank{rank});
    if (is_new) {
      DeliverMembership(session, workers_.at(session), *topology, inherited,
                        generation_->state().identity().slots, turn.effects);
      DeliverSets({session}, inherited, turn.effects);
    }
    for (const auto& missed : resumed->missed[static_cast<size_t>(rank)]) {
      auto message = std::make_shared<v1::CoordinatorMessage>(*missed);
      message->set_epoch(ToInt(epoch_));
      message->set_generation(ToInt(generation()));
      turn.effects.outgoing.push_back(Deliver{{session}, std::move(message)});
    }
    if (!is_new) DeliverResumed(session, *resumed, turn.effects);
  }
  for (const auto& [key, value] : resumed->stored) kv_.Restore(key, value, turn.effects);
  TellDrains(turn);
  news_.TellMembers(-1);  // what the members have heard of them nobody knows
  news_.Changed();
  Emit(Event::Kind::kJobResumed,
       absl::StrCat("generation ", ToInt(generation()), " goes on: all ", back.size(),
                    " ranks are back ", DurationText(turn.now - back.beginning().at), " after ",
                    back.beginning().after),
       turn.effects);
}

// The generation ends as at any loss, for those who are back. Where another one follows, who has
// not heard of it yet hears of it and of its end, since it may have been in the one before.
void JobState::FailResume(Damage damage, const std::string& reason,
                          const std::vector<v1::Departure>& departures, const Turn& turn) {
  const absl::StatusOr<Topology> topology = ResumedTopology();
  const bool tells_all = reforming_.wanted() && damage != Damage::kLeft && topology.ok();
  const ResumeState back = *std::exchange(resume_, std::nullopt);
  const Inheritance inherited{back.repairs(), back.process_sets()};
  std::vector<v1::Departure> departed;
  for (v1::Departure departure : departures) {
    const auto is_it = [&departure](const v1::Departure& known) {
      return known.worker_id() == departure.worker_id() && known.detail() == departure.detail();
    };
    const bool was_asked = drains_.NoteGone(departure.worker_id());
    if (std::any_of(history_.departures.begin(), history_.departures.end(),
                    is_it)) {  // before it was suspended
      departed.push_back(departure);
      continue;
    }
    departure.set_drained(was_asked || departure.cause() == v1::DEPARTURE_CAUSE_DRAINED);
    AddDeparture(history_.departures, departure);
    departed.push_back(departure);
    Emit(Event::Kind::kWorkerDeparted,
         absl::StrCat("rank ", departure.rank(), " (host ", departure.hostname(), ", pid ",
                      departure.pid(), ") ", departure.detail()),
         turn.effects, departure.cause());
  }
  std::vector<SessionId> by_rank, present;
  for (int32_t rank = 0; rank < back.size(); ++rank) {
    const auto session = back.session_of(Rank{rank});
    by_rank.push_back(session.value_or(SessionId{0}));
    if (!session.has_value()) continue;
    if (tells_all && back.is_new(Rank{rank})) {
      Worker& worker = workers_.at(*session);
      worker.place = topology->places[static_cast<size_t>(rank)];
      // It ends at once: nothing is planned in it.
      DeliverMembership(*session, worker, *topology, inherited, /*slots=*/0, turn.effects);
      DeliverSets({*session}, inherited, turn.effects);
    }
    if (tells_all || !back.is_new(Rank{rank})) {
      present.push_back(*session);
      continue;
    }
    // It has heard of no generation that could end: it comes again, as a new one.
    workers_.Remove(*session);
    by_rank.back() = SessionId{0};
    turn.effects.outgoing.push_back(
        CloseSession{*session, absl::UnavailableError(absl::StrCat("join again: ", reason))});
  }
  if (present.empty()) {
    kv_.Close(generation(), turn.effects);
    Emit(Event::Kind::kGenerationEnded,
         absl::StrCat("generation ", ToInt(generation()), " ended: ", reason), turn.effects);
    rendezvous_.StopAwaiting(turn.now);
    news_.Changed();
    NoteGone(turn);
    return;
  }
  rendezvous_.Resume(present, turn.now);
  // Each of those who are back has said a part of the sets, perhaps.
  generation_.emplace(GenerationState::Identity{name_, epoch_, generation(), false}, options_,
                      std::move(by_rank), /*knows_sets=*/false);
  for (const v1::Departure& departure : departed) generation_->AddDeparted(departure);
  EndGeneration(damage, reason, turn);
  TellDrains(turn);
}

}  // namespace coordd
