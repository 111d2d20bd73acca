// What WorkerState does between a generation that has lost a member and the one that follows it.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/process_set_parts.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/execute/worker_errors.h"
#include "worker/protocol/join_message.h"
#include "worker/protocol/tensor_traits.h"
#include "worker/protocol/worker_state.h"

namespace coordd {

void WorkerState::OnAbort(const v1::Abort& abort, const WorkerTurn& turn) {
  const bool alive = end_.ok() && !expects_next_ && attached();
  if (abort.asked() && abort.reforms() && alive && !launched_.empty() &&
      !asked_abort_.has_value()) {
    asked_abort_ = abort;
    asked_abort_deadline_ = turn.now + kAskedAbortWait;
    return;
  }
  asked_abort_.reset();
  if (session_.resuming()) {
    session_.Reattach(turn.now);  // there is nothing to resume, but a session
    reported_ = false;
  }
  const absl::Status why = GenerationEndedBy(options_.generation, abort);
  departures_.assign(abort.departures().begin(), abort.departures().end());
  EndGeneration(why, abort.in_flight(), turn);
  reforms_ = expects_next_ && abort.reforms();
  reports_sets_ = abort.report_process_sets();
  if (expects_next_ && !reforms_) EndForGood(why, turn);
  // What coordd has planned every rank launches; of a schedule some may have launched more.
  if (!abort.in_flight()) launched_.WatchSchedules(turn.now);
}

void WorkerState::CheckAskedAbort(const WorkerTurn& turn) {
  if (!asked_abort_.has_value()) return;
  if (!launched_.empty() && turn.now < asked_abort_deadline_) return;
  v1::Abort abort = *std::exchange(asked_abort_, std::nullopt);
  abort.set_asked(false);
  OnAbort(abort, turn);
}

void WorkerState::EndForGood(absl::Status why, const WorkerTurn& turn) {
  expects_next_ = reforms_ = false;
  end_ = std::move(why);
  turn.out.push_back(GenerationEnded{end_});
  FailEverything(turn);
}

// What all ranks have launched ends by itself. But others may not have heard of it, or may not be
// reached any more than coordd is.
void WorkerState::GiveUp(absl::Status why, const WorkerTurn& turn) {
  if (expects_next_) return EndForGood(std::move(why), turn);
  EndGeneration(std::move(why), /*abort=*/false, turn);
  launched_.WatchAll(turn.now);
}

void WorkerState::Interrupt(const absl::Status& why, const WorkerTurn& turn) {
  if (expects_next_) return;
  aborted_ = expects_next_ = true;
  change_ = GenerationChanged(why);
  turn.out.push_back(AbortExecution{});
  turn.out.push_back(GenerationInterrupted{});
  // The lanes of schedules end with their generation.
  schedules_.MoveTo(pending_);
  log_.Clear();
  pending_.FailWithdrawn(turn);
  pending_.ForgetReports();
  process_sets_.FailRequests(change_, turn.out);
  launched_.SetVerdictDeadline(absl::InfiniteFuture());
}

bool WorkerState::TakeAgain(SubmittedTensor& tensor, const WorkerTurn& turn) {
  if (!OutlivesGeneration(*tensor.spec)) {
    turn.out.push_back(FailTensor{tensor.id, ForTensor(tensor.spec->name, change_)});
    return true;
  }
  pending_.AddInOrder(tensor.id, {std::move(tensor.spec), turn.now, tensor.deadline, false, {}});
  return true;
}

// Nothing of the old generation executes here any more: what is decided about it can be carried
// out.
void WorkerState::ReportRecovery(const WorkerTurn& turn) {
  if (!report_is_due()) return;
  reported_ = has_ended_ = true;
  v1::WorkerMessage message;
  launched_.Describe(*message.mutable_recovery_report());
  if (!reports_sets_) return Send(std::move(message), turn);
  v1::ProcessSets sets;
  sets.set_last_process_set(last_process_set_);
  sets.set_position(sets_position_);
  for (const DefineProcessSet& set : process_sets_.AskedFor()) {
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
  if (message.has_membership()) {
    arriving_ = message;
    arriving_sets_.Clear();
    if (message.membership().process_sets_follow()) return;
  } else if (!arriving_.has_value() || message.generation() != arriving_->generation()) {
    ProtocolError("coordd sent process sets of a generation without its membership", turn);
    return;
  } else {
    AddPart(message.process_sets(), arriving_sets_);
    if (message.process_sets().more()) return;
  }
  const v1::CoordinatorMessage membership = *std::exchange(arriving_, std::nullopt);
  OnMembership(membership, std::exchange(arriving_sets_, {}), turn);
}

void WorkerState::OnMembership(const v1::CoordinatorMessage& message, const v1::ProcessSets& sets,
                               const WorkerTurn& turn) {
  if (left_) return;  // it crossed the goodbye
  // The coordd that has formed it may be one before the one that asks for another report.
  if (!has_ended_) {
    ProtocolError("coordd sent a membership before this rank had reported what became of the last",
                  turn);
    return;
  }
  absl::StatusOr<MemberPlace> place = ParseMembership(message, sets);
  if (!place.ok()) return EndForGood(place.status(), turn);
  for (const v1::LaneRepair& repair : message.membership().repairs()) {
    if (!continues() || launched_.HasResultsUpTo(LaneId{repair.lane()}, repair.completed()))
      continue;
    return ProtocolError(absl::StrCat("coordd counts batch ", repair.completed(), " of lane ",
                                      repair.lane(), " as complete, whose result is not here"),
                         turn);
  }
  EndTrace(/*send=*/false, turn);
  place->state.on_failure = options_.on_failure;
  place->state.join = std::move(options_.join);
  place->state.resume_timeout = options_.resume_timeout;
  place->state.coordinators = options_.coordinators;
  place->state.seed = options_.seed;
  options_ = std::move(place->state);
  log_ = ReceivedLog();
  position_ = 0;
  last_process_set_ = options_.process_sets.last_process_set();
  sets_position_ = 0;
  departures_.clear();
  session_.EnterGeneration(TermsOf(options_), options_.session, turn.now);
  process_sets_ = ProcessSetState(options_.rank, options_.size, options_.process_sets);
  launched_ = LaunchedBatches();  // what awaited a verdict comes back
  schedules_ = ScheduledWork();
  slots_.Clear(options_.slots);
  if (!continues()) change_ = std::exchange(end_, absl::OkStatus());
  aborted_ = expects_next_ = reforms_ = reports_sets_ = reported_ = has_ended_ = asked_for_change_ =
      false;
  turn.out.push_back(NewcomersWait{0});
  turn.out.push_back(EnterGeneration{message, process_sets_.AskedFor()});
  // Behind it: whoever hears of the failure finds the new ranks.
  pending_.FailThose([](const TensorSpec& spec) { return !OutlivesGeneration(spec); }, change_,
                     turn);
  AskToLeave(turn);
}

void WorkerState::On(MembersMayChange& in, const WorkerTurn& turn) {
  // All ranks have come to this point: one speaks for them.
  if (in.generation != options_.generation || !end_.ok() || expects_next_ || leaving_) return;
  if (ToInt(options_.rank) != 0 || options_.on_failure == OnFailure::kEnd) return;
  asked_for_change_ = true;
  AskForChange(turn);
}

void WorkerState::AskForChange(const WorkerTurn& turn) {
  if (!asked_for_change_) return;
  v1::WorkerMessage message;
  message.mutable_change_members();
  Send(std::move(message), turn);
}

// Until coordd has said when, the process knows best.
void WorkerState::On(DrainAsked& in, const WorkerTurn& turn) {
  if (options_.on_failure == OnFailure::kEnd || leaving_) return;
  in.until = std::min(drain_until_, in.until);
  SetDrain(in.until, turn);
  drain_asked_ = std::move(in);
  AskToLeave(turn);
}

// Said again to another coordd, which may not have heard it.
void WorkerState::AskToLeave(const WorkerTurn& turn) {
  if (!drain_asked_.has_value() || leaving_) return;
  v1::WorkerMessage message;
  ToProto(std::max(drain_asked_->until - turn.now, absl::Milliseconds(1)),
          message.mutable_drain_request()->mutable_grace());
  message.mutable_drain_request()->set_reason(
      ShortenedText(drain_asked_->reason, kMaxAskedByBytes));
  Send(std::move(message), turn);
}

void WorkerState::OnDrainNotice(const v1::DrainNotice& notice, const WorkerTurn& turn) {
  if (notice.lifted()) drain_asked_.reset();
  SetDrain(notice.lifted() ? absl::InfiniteFuture() : turn.now + FromProto(notice.grace()), turn);
}

void WorkerState::SetDrain(absl::Time until, const WorkerTurn& turn) {
  drain_until_ = until;
  turn.out.push_back(DrainNoticed{until});
}

// The data plane of this generation has not come into being.
void WorkerState::On(ConnectFailed& in, const WorkerTurn& turn) {
  if (in.generation != options_.generation || !end_.ok() || !launched_.local_failure().ok()) return;
  launched_.NoteLocalFailure(absl::Status(
      in.status.code(), absl::StrCat("the data plane of rank ", ToInt(options_.rank),
                                     in.was_connected ? " failed: " : " could not be connected: ",
                                     in.status.message())));
  SendFailed(BatchKey{LaneId{0}, 0}, "", launched_.local_failure().message(), in.suspect, turn);
  AwaitVerdict(turn.now);
}

}  // namespace coordd
