// What WorkerState does when its generation ends, when another one follows, when its session with
// coordd is lost (docs/design/recovery.md), and when this rank leaves.
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/process_set_parts.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/execute/worker_errors.h"
#include "worker/protocol/join_message.h"
#include "worker/protocol/resume_report.h"
#include "worker/protocol/worker_state.h"

namespace coordd {
namespace {

WorkerGeneration GenerationOf(const WorkerStateOptions& options) {
  return {options.rank, options.size, options.slots, options.process_sets};
}

}  // namespace

CoordinatorSession::Terms TermsOf(const WorkerStateOptions& options) {
  CoordinatorSession::Terms terms;
  terms.generation = options.generation;
  terms.pace = {options.heartbeat_interval, options.lease, options.size, options.rank};
  terms.lasting = !options.cluster_id.empty();
  terms.resume_timeout = options.resume_timeout;
  terms.coordinators = options.coordinators;
  return terms;
}

WorkerState::WorkerState(const WorkerStateOptions& options, absl::Time now)
    : options_(options),
      generation_(GenerationOf(options)),
      succession_(options.on_failure),
      session_(TermsOf(options), options.epoch, options.session, options.received_sequence,
               options.seed ^ std::hash<std::string>()(options.join.worker_id()), now) {}

// --- the end of a generation ---------------------------------------------------------------------

absl::Status WorkerState::Ended(absl::string_view why, absl::StatusCode code) const {
  return GenerationEndedError(options_.generation, why, code);
}

void WorkerState::OnAbort(const v1::Abort& abort, const WorkerTurn& turn) {
  if (succession_.MayHold(abort) && attached() && !generation_.launched.empty()) {
    succession_.HoldAbort(abort, turn.now);
    return;
  }
  succession_.DropHeldAbort();
  if (session_.resuming()) session_.Reattach(turn.now);  // nothing to resume, but a session
  const absl::Status why = GenerationEndedBy(options_.generation, abort);
  EndGeneration(why, abort.in_flight(), turn);
  succession_.OnAbort(abort);
  if (succession_.expects_next() && !abort.reforms()) EndForGood(why, turn);
  // What coordd has planned every rank launches; of a schedule some may have launched more.
  if (!abort.in_flight()) generation_.launched.WatchSchedules(turn.now);
}

void WorkerState::CheckHeldAbort(const WorkerTurn& turn) {
  const std::optional<v1::Abort> abort =
      succession_.TakeHeldAbort(/*executes=*/!generation_.launched.empty(), turn.now);
  if (abort.has_value()) OnAbort(*abort, turn);
}

void WorkerState::EndGeneration(absl::Status why, bool abort, const WorkerTurn& turn) {
  const bool followed = succession_.is_followed() && abort && succession_.end().ok() &&
                        !leaving_.leaves() && !session_.ended() && !absl::IsInternal(why);
  if (followed && succession_.continues()) return Interrupt(why, turn);
  // coordd is told of every failure, and then says what follows.
  succession_.End(std::move(why), abort, followed, turn);
  FailEverything(turn);
}

void WorkerState::FailEverything(const WorkerTurn& turn) {
  const absl::Status& end = succession_.end();
  pending_.FailAll(end, turn);
  generation_.process_sets.FailRequests(end, turn.out);
  generation_.schedules.FailAll(end, turn);
  generation_.heard.log().Clear();
  if (!succession_.expects_next()) session_.StopTrying();  // there is nothing to come back for
  // The verdict on what failed here before: only an abort of what executes says who died in it.
  if (!succession_.aborted()) return;
  generation_.launched.FailAwaiting(end, turn);
  generation_.launched.SetVerdictDeadline(absl::InfiniteFuture());
}

void WorkerState::ProtocolError(absl::string_view what, const WorkerTurn& turn) {
  SendFailed(BatchKey{LaneId{0}, 0}, "", what, std::nullopt, turn);
  const absl::Status why = Ended(what, absl::StatusCode::kInternal);
  if (succession_.expects_next()) return EndForGood(why, turn);
  EndGeneration(why, /*abort=*/true, turn);
}

void WorkerState::Interrupt(const absl::Status& why, const WorkerTurn& turn) {
  if (succession_.expects_next()) return;
  succession_.Interrupt(why, turn);
  // The lanes of schedules end with their generation.
  generation_.schedules.MoveTo(pending_);
  generation_.heard.log().Clear();
  pending_.FailWithdrawn(turn);
  pending_.ForgetReports();
  generation_.process_sets.FailRequests(succession_.change(), turn.out);
  generation_.launched.SetVerdictDeadline(absl::InfiniteFuture());
}

void WorkerState::EndForGood(absl::Status why, const WorkerTurn& turn) {
  succession_.EndForGood(std::move(why), turn);
  FailEverything(turn);
}

// What all ranks have launched ends by itself. But others may not have heard of it, or may not be
// reached any more than coordd is.
void WorkerState::GiveUp(absl::Status why, const WorkerTurn& turn) {
  if (succession_.expects_next()) return EndForGood(std::move(why), turn);
  EndGeneration(std::move(why), /*abort=*/false, turn);
  generation_.launched.WatchAll(turn.now);
}

// --- the next generation -------------------------------------------------------------------------

// Nothing of the old generation executes here any more: what is decided about it can be carried
// out.
void WorkerState::ReportRecovery(const WorkerTurn& turn) {
  if (!report_is_due()) return;
  succession_.NoteReported();
  v1::WorkerMessage message;
  generation_.launched.Describe(*message.mutable_recovery_report());
  if (!succession_.reports_sets()) return Send(std::move(message), turn);
  v1::ProcessSets sets;
  sets.set_last_process_set(generation_.heard.last_process_set());
  sets.set_position(generation_.heard.sets_position());
  for (const DefineProcessSet& set : process_sets()) {
    v1::ProcessSet& said = *sets.add_sets();
    said.set_process_set(ToInt(set.process_set));
    said.mutable_ranks()->Assign(set.ranks.begin(), set.ranks.end());
  }
  for (v1::ProcessSets& part : InParts(sets, kProcessSetsBytes)) {
    *message.mutable_recovery_report()->mutable_process_sets() = std::move(part);
    Send(std::exchange(message, {}), turn);
  }
}

void WorkerState::OnNext(const v1::CoordinatorMessage& message, const WorkerTurn& turn) {
  const auto whole = arriving_.Take(message);
  if (!whole.ok()) return ProtocolError(whole.status().message(), turn);
  if (whole->has_value()) OnMembership((*whole)->message, (*whole)->sets, turn);
}

void WorkerState::OnMembership(const v1::CoordinatorMessage& message, const v1::ProcessSets& sets,
                               const WorkerTurn& turn) {
  if (leaving_.said_goodbye()) return;  // it crossed the goodbye
  if (!succession_.has_reported()) {
    ProtocolError("coordd sent a membership before this rank had reported what became of the last",
                  turn);
    return;
  }
  absl::StatusOr<MemberPlace> place = ParseMembership(message, sets);
  if (!place.ok()) return EndForGood(place.status(), turn);
  for (const v1::LaneRepair& repair : message.membership().repairs()) {
    if (!succession_.continues() ||
        generation_.launched.HasResultsUpTo(LaneId{repair.lane()}, repair.completed()))
      continue;
    return ProtocolError(absl::StrCat("coordd counts batch ", repair.completed(), " of lane ",
                                      repair.lane(), " as complete, whose result is not here"),
                         turn);
  }
  trace_.End(/*send=*/false, ForTrace(turn));
  place->state.on_failure = options_.on_failure;
  place->state.join = std::move(options_.join);
  place->state.resume_timeout = options_.resume_timeout;
  place->state.coordinators = options_.coordinators;
  place->state.seed = options_.seed;
  options_ = std::move(place->state);
  session_.EnterGeneration(TermsOf(options_), options_.session, turn.now);
  generation_ = GenerationOf(options_);  // what awaited a verdict comes back
  succession_ = succession_.Next();
  turn.out.push_back(NewcomersWait{0});
  turn.out.push_back(EnterGeneration{message, process_sets()});
  // Behind it: whoever hears of the failure finds the new ranks.
  pending_.FailThose([](const TensorSpec& spec) { return !OutlivesGeneration(spec); },
                     succession_.change(), turn);
  AskToLeave(turn);
}

bool WorkerState::TakeAgain(SubmittedTensor& tensor, const WorkerTurn& turn) {
  if (!OutlivesGeneration(*tensor.spec)) {
    turn.out.push_back(FailTensor{tensor.id, ForTensor(tensor.spec->name, succession_.change())});
    return true;
  }
  pending_.AddInOrder(tensor.id, {std::move(tensor.spec), turn.now, tensor.deadline, false, {}});
  return true;
}

void WorkerState::On(MembersMayChange& in, const WorkerTurn& turn) {
  // All ranks have come to this point: one speaks for them.
  if (in.generation != options_.generation || !succession_.live() || leaving_.leaves()) return;
  if (ToInt(options_.rank) != 0 || !succession_.is_followed()) return;
  succession_.AskForChange();
  AskForChange(turn);
}

void WorkerState::AskForChange(const WorkerTurn& turn) {
  if (!succession_.asked_for_change()) return;
  v1::WorkerMessage message;
  message.mutable_change_members();
  Send(std::move(message), turn);
}

void WorkerState::On(DrainAsked& in, const WorkerTurn& turn) {
  if (!succession_.is_followed() || leaving_.leaves()) return;
  leaving_.AskDrain(std::move(in), turn);
  AskToLeave(turn);
}

// Said again to another coordd, which may not have heard it.
void WorkerState::AskToLeave(const WorkerTurn& turn) {
  if (auto request = leaving_.DrainRequest(turn.now)) Send(*std::move(request), turn);
}

// --- a lost session ------------------------------------------------------------------------------

void WorkerState::On(StreamEnded& in, const WorkerTurn& turn) {
  if (!session_.IsLatest(in.stream)) return;  // one that was given up
  if (MayResume(in.status)) {
    Detach(in.status, turn);
    return;
  }
  const bool refused = session_.resuming();
  session_.End();  // nothing more is tried
  const bool matters = succession_.end().ok() || succession_.expects_next();
  if (!leaving_.said_goodbye() && matters) {
    const absl::string_view detail = !in.status.ok() ? in.status.message()
                                     : refused       ? "it gives no reason"
                                                     : "without giving a reason";
    // ABORTED: coordd stops, and its Shutdown was lost on the way.
    const bool stops = absl::IsUnavailable(in.status) || absl::IsAborted(in.status);
    const absl::string_view unawaited =
        stops && !session_.terms().lasting
            ? " (its state is in memory only, --store memory, so no other coordd can go on with "
              "this job, and COORDD_RESUME_TIMEOUT is not waited for)"
            : "";
    GiveUp(refused ? Ended(absl::StrCat("coordd does not take this rank back: ", detail))
                   : Ended(absl::StrCat("the connection to coordd has ended: ", detail, unawaited),
                           stops ? absl::StatusCode::kUnavailable : absl::StatusCode::kAborted),
           turn);
  }
  // coordd will say nothing more about who was lost.
  if (generation_.launched.awaits_verdict()) generation_.launched.SetVerdictDeadline(turn.now);
}

bool WorkerState::MayResume(const absl::Status& ended) const {
  if (leaving_.goodbye().failing()) return false;
  // A goodbye that was not answered is said again: or coordd would wait for this rank.
  if (!succession_.end().ok() && !leaving_.said_goodbye() && !succession_.expects_next())
    return false;
  return session_.MayResume(ended);
}

void WorkerState::Detach(const absl::Status& why, const WorkerTurn& turn) {
  if (attached()) trace_.End(/*send=*/false, ForTrace(turn));  // nobody collects it any more
  session_.Detach(why, turn.now);
  if (auto away = session_.TakeAway(turn.now)) turn.out.push_back(*std::move(away));
  succession_.DropHeldAbort();  // as if it had not been heard: coordd says it again
  succession_.ForgetQuestion();
  leaving_.RepeatGoodbye();
  arriving_.Forget();
  // coordd will not say who was lost. (Of a generation that is over they come back in the next.)
  if (generation_.launched.awaits_verdict() && !succession_.expects_next())
    generation_.launched.SetVerdictDeadline(turn.now);
}

void WorkerState::TryAgain(const WorkerTurn& turn) {
  if (session_.HasTimedOut(turn.now)) {
    GiveUp(Ended(session_.TimeoutText(), absl::StatusCode::kUnavailable), turn);
    session_.End();
    return;
  }
  if (session_.TakeAttempt(turn)) SendResume(turn);
}

void WorkerState::SendResume(const WorkerTurn& turn) {
  const absl::StatusOr<int64_t> answered = generation_.process_sets.AnsweredRequests();
  if (!answered.ok()) {
    GiveUp(
        Ended(absl::StrCat("this rank cannot come back to coordd: ", answered.status().message())),
        turn);
    return;
  }
  v1::WorkerMessage hello;
  *hello.mutable_join() = options_.join;
  v1::Resume& resume = *hello.mutable_join()->mutable_resume();
  resume.set_session(session_.number());
  resume.set_epoch(ToInt(session_.epoch()));
  resume.set_generation(ToInt(options_.generation));
  resume.set_position(generation_.heard.log().position());
  resume.set_cluster_id(options_.cluster_id);
  resume.set_rank(ToInt(options_.rank));
  turn.out.push_back(SendMessage{std::move(hello)});
  std::vector<v1::ResumeReport> reports;
  if (succession_.expects_next()) {
    reports.push_back(OverReport(succession_.why(), succession_.departures()));
  } else {
    reports = ResumeReportsOf(generation_, *answered);
  }
  for (v1::ResumeReport& part : reports) {
    v1::WorkerMessage message;
    session_.Stamp(message);
    *message.mutable_resume_report() = std::move(part);
    turn.out.push_back(SendMessage{std::move(message)});
  }
}

void WorkerState::OnResumed(const v1::Resumed& resumed, const WorkerTurn& turn) {
  if (!succession_.end().ok() && !succession_.expects_next()) return;
  if (!session_.resuming()) {
    ProtocolError("coordd resumed a session that was not interrupted", turn);
    return;
  }
  session_.Resumed(resumed.session());
  for (int64_t position : resumed.open_ends()) generation_.heard.log().Keep(position);
  generation_.schedules.ForgetIncoming();  // of a schedule that nobody has heard to its end
  generation_.slots.Clear(resumed.slots());
  session_.Reattach(turn.now);
  leaving_.ForgetNotice(turn);
  AskToLeave(turn);
  if (succession_.expects_next()) {  // since it has said where it stands
    SendFailed(BatchKey{LaneId{0}, 0}, "", succession_.why().message(), std::nullopt, turn);
    return;
  }
  if (const auto answered = generation_.process_sets.AnsweredRequests(); !answered.ok()) {
    ProtocolError(answered.status().message(), turn);
    return;
  }
  ReportAnew(turn);
  // The end of one that executes will be said.
  if (resumed.wants_schedule_finished() && !generation_.schedules.HasDeviceLane())
    generation_.schedules.SendFinished(0, ForSchedules(turn));
}

// Everything that has no answer, in the order in which it was said.
void WorkerState::ReportAnew(const WorkerTurn& turn) {
  pending_.ForgetReports();
  // Who has joined asks for nothing more: the join is behind the requests.
  SendAll(pending_.Report(generation_.slots, /*join_waits=*/true), turn);
  for (v1::ProcessSetRequest& request : generation_.process_sets.AskAnew(turn.now)) {
    v1::WorkerMessage message;
    *message.mutable_process_set_request() = std::move(request);
    Send(std::move(message), turn);
  }
  Report(turn);
  SendAll(pending_.WithdrawAnew(turn.now), turn);
  generation_.schedules.ReportAnew(ForSchedules(turn));
  AskForChange(turn);
}

// --- the goodbye ---------------------------------------------------------------------------------

void WorkerState::On(LeaveRequested& in, const WorkerTurn& turn) {
  Goodbye& goodbye = leaving_.goodbye();
  goodbye.Request(in, /*may_fail=*/succession_.end().ok() || succession_.is_followed());
  if (goodbye.failing() && !leaving_.said_goodbye())
    EndGeneration(
        absl::CancelledError(absl::StrCat("this rank's program has failed: ", goodbye.failure())),
        /*abort=*/false, turn);
  if (leaving_.leaves()) return;
  leaving_.Advance(WorkerLeaving::Phase::kLeaves);
  const absl::Status why = absl::CancelledError("this worker is shutting down");
  generation_.process_sets.FailRequests(why, turn.out);
  pending_.FailUnreported(why, turn);
  if (succession_.expects_next()) generation_.launched.FailAwaiting(why, turn);
  std::vector<TensorId> reported;
  for (const auto& [id, tensor] : pending_.tensors())
    if (tensor.withdrawn.ok()) reported.push_back(id);
  SendAll(pending_.Withdraw(reported, why, turn.now), turn);
  generation_.schedules.Leave(why, turn);
  generation_.launched.WatchSchedules(turn.now);
}

void WorkerState::On(StopForced&, const WorkerTurn& turn) {
  leaving_.Advance(WorkerLeaving::Phase::kLeaves);
  EndGeneration(absl::CancelledError("this worker was shut down before its collectives had ended"),
                /*abort=*/true, turn);
  // Neither coordd nor the end of the stream is waited for.
  session_.End();
  leaving_.Advance(WorkerLeaving::Phase::kSaidGoodbye);
  generation_.launched.SetVerdictDeadline(turn.now);
}

// Of a failure coordd hears before the others can see that what they execute with this rank ends.
void WorkerState::LeaveFailing(const WorkerTurn& turn) {
  if (!leaving_.said_goodbye() && !session_.detached()) SayGoodbye(turn);
  const bool is_known = session_.ended() || session_.detached();
  if (!is_known || (succession_.aborted() && !session_.detached())) return;
  StopForced stop;
  On(stop, turn);
}

void WorkerState::LeaveWhenDrained(const WorkerTurn& turn) {
  if (!leaving_.leaves()) return;
  Goodbye& goodbye = leaving_.goodbye();
  if (goodbye.failing()) LeaveFailing(turn);
  const LaunchedBatches& launched = generation_.launched;
  if (!pending_.empty() || !launched.empty() || launched.awaits_verdict()) return;
  if (succession_.end().ok() && !session_.ended() && goodbye.Holds(turn.now)) {
    if (goodbye.TakeFinished()) turn.out.push_back(WorkFinished{});
    return;
  }
  if (session_.detached()) return;  // the goodbye waits for coordd
  SayGoodbye(turn);
  if (!session_.ended()) return;
  leaving_.Advance(WorkerLeaving::Phase::kStopped);
  turn.out.push_back(Stopped{});
}

void WorkerState::SayGoodbye(const WorkerTurn& turn) {
  if (leaving_.said_goodbye()) return;
  leaving_.Advance(WorkerLeaving::Phase::kSaidGoodbye);
  succession_.DropHeldAbort();
  trace_.End(/*send=*/true, ForTrace(turn));
  const bool lives = succession_.EndByGoodbye(turn);
  v1::WorkerMessage message;
  v1::Leave& leave = *message.mutable_leave();
  leave = leaving_.GoodbyeMessage(lives);
  leave.set_bytes_reduced(totals_.bytes);
  leave.set_batches_completed(totals_.batches);
  // Also to one that has not taken it back yet: there is nothing to be told.
  session_.StopResuming();
  Send(std::move(message), turn);
  turn.out.push_back(CloseStream{});
}

}  // namespace coordd
