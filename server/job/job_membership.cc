// Who is in a job: workers come and go, and generations begin and end.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/duration_text.h"
#include "common/base/one_line.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "server/job/departure.h"
#include "server/job/job_state.h"
#include "server/job/join_rules.h"
#include "server/job/link_verdict.h"
#include "server/model/job_record.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// Behind a change of members on which they have agreed: for those who were asked to leave to say
// goodbye, so that they are not in the next generation, too.
constexpr absl::Duration kLeaveWindow = absl::Seconds(5);
// With a disk, before those who wait hear that they wait for it.
constexpr absl::Duration kPatience = absl::Seconds(1);

}  // namespace

// --- Workers come ---

absl::Status JobState::Join(SessionId session, const v1::Join& join, const Turn& turn) {
  COORDD_RETURN_IF_ERROR(workers_.HasRoomFor(join));
  if (HasLostItsStream(join, turn.now)) {
    Suspend(absl::StrCat("worker ", join.worker_id(), " had lost its connection"), turn);
  }
  if (!return_.Concerns(join))
    return join.has_resume() ? RefuseResume(join) : JoinNew(session, join, turn);
  COORDD_RETURN_IF_ERROR(token_.Check(join.token()));
  if (const auto failure = return_.Replaced(join)) {
    FailReturn(*failure, turn);
    return Join(session, join, turn);
  }
  COORDD_RETURN_IF_ERROR(return_.Join(session, join, turn));
  if (join.has_resume()) store_return_.Came(session);
  ConcludeReturn(turn);
  return absl::OkStatus();
}

absl::Status JobState::JoinNew(SessionId session, const v1::Join& join, const Turn& turn) {
  ReplaceWaiting(join, turn);
  COORDD_RETURN_IF_ERROR(MayJoin(join, View(), token_.Check(join.token()), turn.now));
  COORDD_RETURN_IF_ERROR(workers_.MayWait(join));
  if (ended()) {
    COORDD_RETURN_IF_ERROR(Start(join, turn.now));
    history_.ForgetEarlierRun(join.launch());
    Emit(Event::Kind::kJobCreated,
         absl::StrCat("min_workers ", rendezvous_.options().min_workers, ", max_workers ",
                      rendezvous_.options().max_workers),
         turn.effects);
  }
  COORDD_RETURN_IF_ERROR(rendezvous_.Join(session, turn.now));
  Worker worker;
  worker.join = join;
  worker.join.clear_token();
  worker.last_heard = turn.now;
  Emit(Event::Kind::kWorkerJoined,
       absl::StrCat(Who(worker), " joined: ", rendezvous_.Reason(turn.now)), turn.effects);
  workers_.Add(session, std::move(worker));
  news_.Changed();
  // A process that starts again under its old id replaces itself, once its generation is over.
  const auto old = generation_.has_value() ? generation_->OldOf(join.worker_id()) : std::nullopt;
  if (old.has_value()) {
    const std::string detail = "a newer process joined with its worker id";
    Expel(*old, v1::DEPARTURE_CAUSE_EVICTED, "was replaced: " + detail,
          absl::FailedPreconditionError(detail), turn);
  }
  return absl::OkStatus();
}

absl::Status JobState::RefuseResume(const v1::Join& join) {
  if (started_) COORDD_RETURN_IF_ERROR(token_.Check(join.token()));  // before it is told anything
  const int64_t theirs = join.resume().generation();
  if (damage() != Damage::kNone && theirs == ToInt(generation()))
    return absl::FailedPreconditionError(generation_->reason());
  const bool goes_on = theirs == ToInt(generation()) && generation_.has_value();
  return CannotResume(join, messages_.name(), goes_on ? "goes on without it" : "is over");
}

// One that waits has lost its connection, and is back before coordd has noticed that. (Or a Join of
// the lost one has come late: then whoever waits comes again.)
void JobState::ReplaceWaiting(const v1::Join& join, const Turn& turn) {
  const auto session = SessionOf(join.worker_id());
  if (!session.has_value() || !token_.Check(join.token()).ok()) return;
  const Worker& worker = workers_.at(*session);
  const bool is_same =
      worker.join.pid() == join.pid() && worker.join.host().node_id() == join.host().node_id();
  if (worker.IsMember() || !is_same) return;
  const std::string detail = "has connected again while it waited";
  Expel(*session, v1::DEPARTURE_CAUSE_CONNECTION_LOST, detail, absl::UnavailableError(detail),
        turn);
}

// The first member's word: what the job is from now on.
absl::Status JobState::Start(const v1::Join& join, absl::Time now) {
  reforming_.Begin(ReformingOf(FromProto(join.on_failure()), options_),
                   /*same_run=*/token_.Is(join.token()));
  COORDD_ASSIGN_OR_RETURN(const RendezvousOptions limits,
                          LimitsOf(join, messages_.name(), options_));
  COORDD_CHECK(workers_.empty() && !generation_.has_value());
  token_.Begin(join.token());
  rendezvous_ = RendezvousState(limits, rendezvous_.proposed(), now);
  started_ = true;
  forming_.Begin();
  return absl::OkStatus();
}

// Each Join asks, and few find somebody: ten thousand that come must not look at each other.
std::optional<SessionId> JobState::SessionOf(const std::string& worker_id) const {
  const bool is_old = generation_.has_value() && generation_->OldOf(worker_id).has_value();
  if (!workers_.Counts(worker_id) && !is_old) return std::nullopt;
  return workers_.SessionOf(worker_id);
}

// --- and go ---

void JobState::Depart(SessionId session, v1::DepartureCause cause, absl::string_view detail,
                      const Turn& turn) {
  COORDD_CHECK(Has(session));
  if (return_.Has(workers_.at(session))) {  // it may come again
    return_.Drop(session);
    return ConcludeReturn(turn);
  }
  const Worker worker = workers_.Take(session);
  const bool is_member = worker.generation != Generation{0};
  const Damage done = DamageOf(cause, reforming_, damage());
  v1::Departure departure = DepartureOf(worker, cause, detail, done == Damage::kLost);
  departure.set_drained(desk_.drains().NoteGone(worker.join.worker_id()) ||
                        cause == v1::DEPARTURE_CAUSE_DRAINED);
  history_.Add(departure);
  const std::string sentence = absl::StrCat(Who(worker), " ", departure.detail());
  messages_.EmitDeparture(departure, sentence, turn.effects);

  // A member of a damaged generation no longer counts for admission, and a newer process may have
  // its id by now; unless it would have been in the next one.
  if (!is_member || damage() == Damage::kNone || reforming_.open()) workers_.Release(worker);
  if (generation_.has_value()) generation_->DropOld(worker.join.worker_id(), session);
  rendezvous_.Remove(session, turn.now);
  if (is_member) {
    trace_.OnGone(worker.place.rank, sentence, turn);
    generation_->AddDeparted(departure);
    EndGeneration(done, sentence, turn);
  }
  news_.Changed();
  NoteGone(turn);
}

void JobState::Expel(SessionId session, v1::DepartureCause cause, const std::string& detail,
                     const absl::Status& close, const Turn& turn) {
  Depart(session, cause, detail, turn);
  turn.effects.outgoing.push_back(CloseSession{session, close});
}

void JobState::ExpelAll(const std::vector<SessionId>& sessions, const absl::Status& why,
                        const Turn& turn) {
  for (SessionId session : sessions)
    Expel(session, v1::DEPARTURE_CAUSE_FAILED, std::string(why.message()), why, turn);
}

// The last member, or the last worker, may just have gone.
void JobState::NoteGone(const Turn& turn) {
  if (generation_.has_value() && rendezvous_.members() == 0) {
    turn.Bury(kv_.Close(generation(), turn.effects));
    if (reforming_.open() && generation_->knows_sets())
      survivors_.KeepSets(generation_->state().HandOn());
    ForgetGeneration(turn);
    if (reforming_.open()) reforming_.Gathering(turn.now);
    // Newcomers would begin from nothing, and nobody would know. The last of them has ended the
    // job.
    if (!reforming_.none_follows().empty() && !workers_.empty())
      return ExpelAll(workers_.All(), NobodyIsTaken(View()), turn);
  }
  if (rendezvous_.phase() != RendezvousPhase::kEnded) return;
  reforming_.Ended();
  forming_.Abandon(turn);
  survivors_.ForgetSets(turn);
  desk_.Fail(turn.effects);
  const std::string over = absl::StrCat("job ", messages_.name(), " has ended");
  trace_.OnAllGone(over, turn);  // a job that has ended may be forgotten at any time
  turn.Bury(kv_.Clear(absl::NotFoundError(over), turn.effects));
  turn.Bury(store_return_.Abandon());
  news_.Forget();
  Emit(Event::Kind::kJobEnded, rendezvous_.Reason(turn.now), turn.effects);
  PersistEnd(turn.effects);
}

// --- Generations begin, ---

void JobState::Propose(const Turn& turn) {
  if (!forming_.making()) {
    if (turn.now < desk_.NextLeaving()) return;
    const auto sessions = rendezvous_.Propose(turn.now);
    if (!sessions.has_value()) return;
    forming_.Propose(NextOf(*sessions, token_, rendezvous_, reforming_, survivors_, workers_,
                            messages_, options_),
                     turn);
  }
  NextGeneration& next = *forming_.next();
  if (!next.Continue(turn.entries)) return;
  if (!durability_.on) return Confirm(next.number(), turn);
  const std::string& name = messages_.name();
  turn.effects.persist.push_back({name, next.number(), {JobWrite(name, next.TakeStored())}});
  // Mostly the answer comes in milliseconds: not worth a message to everybody.
  if (forming_.not_stored().empty()) news_.NotBefore(turn.now + kPatience);
}

// A worker of it may have gone, or another one may be proposed by now.
void JobState::Confirm(Generation number, const Turn& turn) {
  const std::unique_ptr<NextGeneration> next = forming_.Take(number);
  const auto members = rendezvous_.Confirm(number, turn.now);
  if (members.has_value()) return Form(*members, *next, turn);
  if (next != nullptr) next->Bury(turn);
}

void JobState::Form(const std::vector<SessionId>& sessions, const NextGeneration& next,
                    const Turn& turn) {
  NoteLostState(sessions, turn.effects);
  const Topology topology = survivors_.TopologyOf(sessions);
  std::vector<SessionId> by_rank;
  by_rank.reserve(sessions.size());
  for (const Place& place : topology.places) {
    const SessionId session = sessions[topology.member_of_rank[by_rank.size()]];
    by_rank.push_back(session);
    workers_.Enter(session, generation(), place, history_.executed().before(), turn.now);
    messages_.Membership(session, place, topology, next.record(), *next.found(),
                         next.state()->identity().slots, turn.effects);
  }
  next.found()->Tell(by_rank, turn.effects);
  forming_.Formed(next, turn);
  survivors_.ForgetSets(turn);
  desk_.NoteFormed(turn.effects);
  reforming_.Formed(turn.now);
  COORDD_CHECK(by_rank.size() == sessions.size() && !generation_.has_value());
  generation_.emplace(next.state(), /*knows_sets=*/true);
  kv_.Open(generation());
  news_.TellMembers(0);
  news_.Forget();
  if (rendezvous_.waiting() > 0) news_.Changed();  // they came while this was being stored
  Emit(Event::Kind::kGenerationFormed, FormedText(generation(), topology), turn.effects);
}

// None of those who are in it were in the one before, which was to go on.
void JobState::NoteLostState(const std::vector<SessionId>& sessions, Effects& effects) {
  if (survivors_.Any(sessions) || !reforming_.unfinished()) return;
  const int64_t batches = ExecutedBy(View()).batches;
  if (batches == 0 && !history_.executed().has_uncounted()) return;  // there was no state yet
  const std::string sentence = LostStateText(generation(), batches);
  reforming_.StateIsLost(sentence);
  Emit(Event::Kind::kStateLost, sentence, effects);
}

// --- and end ---

// Members are told when the generation ends and when that gets worse, not of every departure: that
// would be n messages to n workers at the end of every job.
void JobState::EndGeneration(Damage damage, const std::string& reason, const Turn& turn) {
  const bool was_intact = generation_->intact();
  if (!generation_->Worsen(damage)) return;
  if (was_intact) {
    // What was asked for is no failure, however often.
    const bool explained = damage == Damage::kLost || damage == Damage::kAsked;
    if (reforming_.Broken(reason, explained, damage == Damage::kLeft, turn.now))
      rendezvous_.ExpectRejoins(/*only=*/reforming_.on_failure() == OnFailure::kContinue);
  } else if (damage == Damage::kLost) {
    reforming_.Lost();
    // Not all may have come to where it was asked for: whoever is new waits for another.
    if (reforming_.open() && reforming_.on_failure() == OnFailure::kContinue)
      rendezvous_.ExpectRejoins(/*only=*/true);
  }
  const bool last = !reforming_.none_follows().empty();
  generation_->Explain(
      Truncated(OneLine(absl::StrCat(
                    "generation ", ToInt(generation()), " ended: ", reason,
                    last ? absl::StrCat("; none follows: ", reforming_.none_follows()) : "")),
                kMaxReasonBytes));
  std::vector<SessionId> members = LetGo(was_intact);
  if (was_intact && damage == Damage::kAsked) desk_.drains().AwaitUntil(turn.now + kLeaveWindow);
  if (was_intact) {
    rendezvous_.Break(turn.now);
    generation_->End(turn);
    Emit(Event::Kind::kGenerationEnded, generation_->reason(), turn.effects);
  }
  // After a goodbye, batches that were planned may still need addresses from the store.
  if (generation_->damage() != Damage::kLeft) turn.Bury(kv_.Close(generation(), turn.effects));
  if (members.empty()) return;
  std::shared_ptr<v1::CoordinatorMessage> message = messages_.New(generation());
  *message->mutable_abort() = generation_->AbortOf(reforming_.open());
  turn.effects.outgoing.push_back(Deliver{std::move(members), std::move(message)});
  trace_.EndEarly(generation_->reason(), turn);
}

// Those who are left of a generation; where none follows, they are in nobody's way any more.
std::vector<SessionId> JobState::LetGo(bool was_intact) {
  std::vector<SessionId> members = workers_.Members();
  if (!was_intact || reforming_.open()) return members;
  for (SessionId session : members) {
    const Worker& worker = workers_.at(session);
    workers_.Release(worker);
    generation_->KeepOld(worker.join.worker_id(), session);
  }
  return members;
}

// Whoever waits is in the next generation, if there is room for it and it is there by then.
void JobState::OnChangeMembers(const Worker& worker, const Turn& turn) {
  if (!reforming_.wanted()) return;  // the member is told what it can do, and that is not it
  const size_t asked = desk_.drains().size();
  const bool was_intact = damage() == Damage::kNone;
  EndGeneration(Damage::kAsked,
                absl::StrCat(Who(worker), " asked for a change of members, ", rendezvous_.waiting(),
                             rendezvous_.waiting() == 1 ? " worker waits" : " workers wait",
                             asked == 0 ? "" : absl::StrCat(", ", asked, " asked to leave")),
                turn);
  // All are at the same point, and have nothing to execute again.
  if (was_intact && reforming_.open()) rendezvous_.ExpectRejoins(/*only=*/false);
}

// From now on it waits as one that has just joined does; its place in the old generation is its
// claim on one in the next.
absl::Status JobState::OnRecoveryReport(SessionId session, Worker& worker,
                                        v1::RecoveryReport report, const Turn& turn) {
  const bool more = report.process_sets().more();
  const int32_t size = generation_->state().size();
  COORDD_RETURN_IF_ERROR(Survivors::AddReport(size, std::move(report), worker));
  COORDD_RETURN_IF_ERROR(workers_.TakeReport(worker, /*is_whole=*/!more));
  if (more) return absl::OkStatus();
  worker.AwaitNext();
  rendezvous_.Rejoin(session, turn.now);
  news_.Changed();
  NoteGone(turn);
  CheckReports(turn);
  return absl::OkStatus();
}

void JobState::CheckReports(const Turn& turn) {
  if (rendezvous_.members() > 0) return;
  const absl::Status status = survivors_.Check(workers_.All());
  if (status.ok()) return;
  Emit(Event::Kind::kProtocolError, status.message(), turn.effects);
  GiveUp(status, turn);
}

void JobState::WatchReforming(const Turn& turn) {
  if (const auto why = reforming_.Verdict(turn.now)) Judge(*why, turn);
  if (reforming_.ReportsAreOverdue(turn.now)) ExpelSilent(turn);
  if (!reforming_.TimedOut(turn.now)) return;
  const std::string why = absl::StrCat("no generation has followed within ",
                                       absl::FormatDuration(options_.reform_timeout), ": ",
                                       rendezvous_.Reason(turn.now), "; ", reforming_.reason());
  GiveUp(absl::DeadlineExceededError(why), turn);
}

// Members that live and do not reach each other would fail together again. Where none go on, all of
// them are only told.
void JobState::Judge(const std::string& why, const Turn& turn) {
  const Blame blame = std::exchange(generation_->blame(), Blame());
  if (blame.empty() || !reforming_.wanted())
    return EndGeneration(Damage::kCollectiveFailed, why, turn);
  for (const auto& [session, detail] : PartWith(blame, generation_->state(), workers_, turn.now)) {
    if (!Has(session)) continue;
    Expel(session, v1::DEPARTURE_CAUSE_EVICTED, detail,
          absl::FailedPreconditionError(absl::StrCat("this worker ", detail)), turn);
  }
}

// Their leases go on, but what they execute does not end.
void JobState::ExpelSilent(const Turn& turn) {
  const std::string detail =
      absl::StrCat("it had not ended what it was executing ", absl::FormatDuration(options_.lease),
                   " after generation ", ToInt(generation()), " was over");
  ExpelAll(workers_.Members(), absl::FailedPreconditionError(detail), turn);
}

// Those who were never members, too: they would begin from nothing.
void JobState::GiveUp(const absl::Status& why, const Turn& turn) {
  reforming_.GiveUp(std::string(why.message()));
  ExpelAll(workers_.All(), why, turn);
}

// --- and go on ---

// The generation goes on, or another one follows it, and its member wants its place back: it has
// lost its stream, whatever is known of that here.
bool JobState::HasLostItsStream(const v1::Join& join, absl::Time now) {
  if (!durability_.outlives || !MayBeTakenUp() || !token_.Check(join.token()).ok()) return false;
  if (!join.has_resume() && !IsExcused(now)) return false;
  const auto session = SessionOf(join.worker_id());
  if (!session.has_value() || !workers_.at(*session).IsMember()) return false;
  return return_.IsOfMember(join, forming_.record(), workers_.at(*session).place.rank);
}

// As if coordd had been started again, but for what it knows of the past: who has departed does not
// come back. A generation that is being stored is never announced.
void JobState::Suspend(absl::string_view after, const Turn& turn) {
  const absl::Status why =
      absl::UnavailableError(absl::StrCat("coordd takes up generation ", ToInt(generation()),
                                          " of job ", messages_.name(), " anew, since ", after));
  for (SessionId session : workers_.All())
    turn.effects.outgoing.push_back(CloseSession{session, why});
  trace_.EndEarly(std::string(why.message()), turn);
  const bool returned = return_.under_way();  // and whoever was not back yet may come
  turn.Bury(return_.Abandon());
  const JobWorkers::Disbanded were = workers_.Disband();
  if (generation_.has_value()) generation_->End(turn);
  DropGeneration(turn);
  forming_.Abandon(turn);
  survivors_.ForgetSets(turn);
  reforming_.Suspended();
  rendezvous_.Suspend(turn.now);
  kv_.Open(generation());
  news_.Forget();
  desk_.drains().Suspend();
  AwaitMembers(after, turn.now);
  if (!returned) return_.NoteDeparted(were.members, history_, reforming_.reason());
  const auto all = static_cast<size_t>(forming_.record().members_size());
  Emit(Event::Kind::kJobRestored,
       absl::StrCat("generation ", ToInt(generation()), " is taken up anew, since ", after,
                    ": it had ", MembersWho(returned ? all : were.members.size()),
                    DurationText(return_.NextDeadline() - turn.now), " to come back"),
       turn.effects);
  for (const v1::LaunchedExit& exit : were.exits) return_.NoteExit(exit);
}

// All are back, or nobody is waited for any more: the generation goes on, or ends as at any loss.
void JobState::ConcludeReturn(const Turn& turn) {
  if (!return_.complete() || return_.merging()) return;
  if (const auto over = return_.Over()) return FailReturn(*over, turn);
  if (return_.disturbed()) return;
  TakeUp(ReportMerge::kEntriesAtOnce, turn);
}

void JobState::TakeUp(int64_t entries, const Turn& turn) {
  auto whole = return_.Whole(entries, turn);
  if (!whole.has_value()) return;
  if (!whole->ok()) return FailReturn(return_.CannotGoOn(whole->status()), turn);
  const std::vector<SessionId> by_rank = return_.ByRank();
  generation_.emplace((*whole)->state, /*knows_sets=*/true);
  rendezvous_.Resume(by_rank, turn.now);
  const ResumeBeginning beginning = return_.GoOn(**whole, turn);
  desk_.TellReturned(Dismisser(turn), turn);
  news_.TellMembers(-1);  // what the members have heard of them nobody knows
  news_.Changed();
  Emit(Event::Kind::kJobResumed,
       absl::StrCat("generation ", ToInt(generation()), " goes on: ", AllAreBack(by_rank.size()),
                    DurationText(turn.now - beginning.at), " after ", beginning.after),
       turn.effects);
}

// Whatever has become of the generation: those who are back have said what they have of the store.
// It may be a million keys: each turn takes some of them.
void JobState::WatchReturn(const Turn& turn) {
  if (return_.disturbed())
    return Suspend("a member came or went while others were told what they had missed", turn);
  if (const auto failure = return_.Overdue(turn)) FailReturn(*failure, turn);
  return_.BuryEnded(turn);
  if (return_.merging()) TakeUp(ReportMerge::kEntriesATurn, turn);
  if (!kv_.awaits() || return_.under_way()) return;
  if (!store_return_.EndIfComplete([this](SessionId session) { return Has(session); })) return;
  kv_.Restore(store_return_.Take(), turn);
  if (!store_return_.ending()) kv_.GoOn(turn);
}

// The generation ends as at any loss, for those who are back.
void JobState::FailReturn(const ReturnFailure& failure, const Turn& turn) {
  const std::vector<v1::Departure> departed =
      NoteDepartures(failure.departures, desk_.drains(), history_, messages_, turn.effects);
  JobReturn::Present present = return_.End(failure, reforming_.wanted(), turn);
  if (present.sessions.empty()) {
    turn.Bury(kv_.Close(generation(), turn.effects));
    Emit(Event::Kind::kGenerationEnded,
         absl::StrCat("generation ", ToInt(generation()), " ended: ", failure.reason),
         turn.effects);
    rendezvous_.StopAwaiting(turn.now);
    news_.Changed();
    return NoteGone(turn);
  }
  rendezvous_.Resume(present.sessions, turn.now);
  // Each of those who are back has said a part of the sets, perhaps.
  generation_.emplace(GenerationIdentity{messages_.name(), messages_.epoch(), generation(), false,
                                         false, 0, token_.budget()},
                      options_, std::move(present.by_rank), /*knows_sets=*/false);
  for (const v1::Departure& departure : departed) generation_->AddDeparted(departure);
  EndGeneration(failure.damage, failure.reason, turn);
  desk_.TellReturned(Dismisser(turn), turn);
}

}  // namespace coordd
