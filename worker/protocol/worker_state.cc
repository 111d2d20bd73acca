// What comes to WorkerState while a generation lives, and what it does when its time has come.
#include "worker/protocol/worker_state.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/execute/worker_errors.h"
#include "worker/protocol/plan_reader.h"

namespace coordd {
namespace {

// As it was announced, if the message tells of its end.
std::optional<v1::ProcessSetChange> EndingSet(const ProcessSetState& sets,
                                              const v1::CoordinatorMessage& message) {
  const v1::ProcessSetChange& change = message.process_set_change();
  const bool ends =
      message.has_process_set_change() && change.code() == 0 && change.ranks().empty();
  return ends ? sets.Announced(ProcessSetId{change.process_set()}) : std::nullopt;
}

}  // namespace

void WorkerState::Step(WorkerEvent in, absl::Time now, std::vector<WorkerEffect>& out) {
  const WorkerTurn turn{now, out};
  std::visit([&](auto& event) { On(event, turn); }, in);
}

void WorkerState::On(TensorsSubmitted& in, const WorkerTurn& turn) {
  for (SubmittedTensor& tensor : in.tensors) {
    const std::string& name = tensor.spec->name;
    if (in.again && TakeAgain(tensor, turn)) continue;
    // The last three are refused by Worker::Submit already; this keeps the state valid whatever
    // comes.
    absl::Status refused = succession_.end();
    if (leaving_.leaves()) refused = absl::CancelledError("this worker is shutting down");
    if (refused.ok() && IsOutdated(in.generation, *tensor.spec)) refused = succession_.change();
    if (refused.ok() && !generation_.process_sets.IsMember(tensor.spec->process_set))
      refused = absl::FailedPreconditionError(absl::StrCat(
          "process set ", ToInt(tensor.spec->process_set), " has been removed, or never was"));
    if (refused.ok() && pending_.has_joined())
      refused = absl::FailedPreconditionError(
          "this rank has joined, expected nothing more until the join ends");
    if (refused.ok() && pending_.Contains(tensor.spec->process_set, name))
      refused = absl::AlreadyExistsError("pending already");
    if (!refused.ok()) {
      turn.out.push_back(FailTensor{tensor.id, ForTensor(name, refused)});
      continue;
    }
    if (!generation_.schedules.empty()) {
      std::optional<ScheduledWork::Fault> fault;
      const bool taken = generation_.schedules.Take(tensor, ForSchedules(turn), fault);
      if (fault.has_value()) EndForFault(*fault, turn);
      if (taken) continue;
    }
    const bool joins = tensor.spec->kind == CollectiveKind::kJoin;
    pending_.Add(tensor.id, {std::move(tensor.spec), turn.now, tensor.deadline, false, {}});
    if (joins) generation_.schedules.Fill(ForSchedules(turn));
  }
}

int64_t WorkerState::pending_tensors() const {
  return static_cast<int64_t>(pending_.size()) + generation_.schedules.held();
}

void WorkerState::On(ProcessSetAsked& in, const WorkerTurn& turn) {
  absl::Status refused = succession_.end();
  if (leaving_.leaves()) refused = absl::CancelledError("this worker is shutting down");
  if (refused.ok() && (succession_.expects_next() || IsOutdated(in.generation)))
    refused = succession_.change();
  if (refused.ok() && pending_.has_joined())
    refused = absl::FailedPreconditionError(
        "this rank has joined, expected no request for a process set until the join ends");
  if (refused.ok() && !in.name.empty() && !options_.named_sets)
    refused = absl::UnimplementedError(
        absl::StrCat("process set ", in.name,
                     ": this coordd is of a release that knows no process "
                     "sets made by their members alone, expected a newer one"));
  if (refused.ok()) refused = generation_.process_sets.CheckAsked(in);
  if (!refused.ok()) {
    turn.out.push_back(ProcessSetAnswer{in.token, std::move(refused), ProcessSetId{}});
    return;
  }
  // What was submitted before the request reaches coordd before it: the set may be about to end.
  Report(turn);
  v1::WorkerMessage message;
  *message.mutable_process_set_request() = generation_.process_sets.Ask(std::move(in), turn.now);
  Send(std::move(message), turn);
}

// --- what coordd says ----------------------------------------------------------------------------

bool WorkerState::IsOfThisSession(const CoordinatorSaid& in, const WorkerTurn& turn) {
  const absl::StatusOr<bool> heard = session_.Hears(in.stream, in.message.epoch());
  if (!heard.ok()) GiveUp(Ended(heard.status().message()), turn);
  if (!heard.ok() || !*heard) return false;
  if (session_.TakeSequence(in.message.sequence())) return true;
  ProtocolError(absl::StrCat("coordd sent message ", in.message.sequence(), ", expected ",
                             session_.received_sequence() + 1),
                turn);
  return false;
}

// long: a case for each kind of message
void WorkerState::On(CoordinatorSaid& in, const WorkerTurn& turn) {
  const v1::CoordinatorMessage& message = in.message;
  if (!IsOfThisSession(in, turn)) return;
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kWaiting:
      return;  // news of a job that gathers; no part of a generation
    case v1::CoordinatorMessage::kShutdown:
      // It comes back: the end of the stream, which follows, is all that happens.
      if (message.shutdown().has_resume_within() && !options_.cluster_id.empty()) return;
      GiveUp(Ended(StoppingText(message.shutdown()), absl::StatusCode::kUnavailable), turn);
      return;
    case v1::CoordinatorMessage::kDrainNotice:
      leaving_.OnDrainNotice(message.drain_notice(), turn);
      return;
    case v1::CoordinatorMessage::kLeaseAck:
      session_.heartbeats().OnAck(message.lease_ack(), turn.now);
      return;
    default:
      break;
  }
  if (message.generation() < ToInt(options_.generation)) return;  // refused by number
  const bool next = message.generation() > ToInt(options_.generation);
  const bool begins = message.has_membership() || message.has_process_sets();
  if (next && begins && succession_.expects_next() && message.epoch() == ToInt(session_.epoch())) {
    OnNext(message, turn);
    return;
  }
  if (next || message.epoch() > ToInt(session_.epoch())) {
    ProtocolError(
        absl::StrCat("coordd sent a message of epoch ", message.epoch(), ", generation ",
                     message.generation(), "; this worker is in epoch ", ToInt(session_.epoch()),
                     ", generation ", ToInt(options_.generation)),
        turn);
    return;
  }
  generation_.heard.Begin(message.position());
  const auto ending = EndingSet(generation_.process_sets, message);
  OnGenerationMessage(message, turn);
  if (options_.cluster_id.empty() || !succession_.live()) return;
  generation_.heard.Keep(std::move(in.message));
  // Behind the word of its end, which of a set that its members have made alone went to that set.
  if (ending.has_value()) generation_.heard.log().NoteEnded(*ending);
}

void WorkerState::OnGenerationMessage(const v1::CoordinatorMessage& message,
                                      const WorkerTurn& turn) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kPlan:
      OnPlan(message.plan(), turn);
      return;
    case v1::CoordinatorMessage::kTensorFailures:
      OnFailures(message.tensor_failures(), turn);
      return;
    case v1::CoordinatorMessage::kAbort:
      OnAbort(message.abort(), turn);
      return;
    case v1::CoordinatorMessage::kSchedule:
      OnSchedule(message.schedule(), turn);
      return;
    case v1::CoordinatorMessage::kFreeze:
      OnFreeze(message.freeze(), turn);
      return;
    case v1::CoordinatorMessage::kCut:
      OnCut(message.cut(), turn);
      return;
    case v1::CoordinatorMessage::kTrace:
      trace_.On(message.trace(), ForTrace(turn));
      return;
    case v1::CoordinatorMessage::kNewcomers:
      turn.out.push_back(NewcomersWait{message.newcomers().waiting()});
      return;
    case v1::CoordinatorMessage::kProcessSetChange:
      OnProcessSetChange(message.process_set_change(), turn);
      return;
    case v1::CoordinatorMessage::kResumed:
      OnResumed(message.resumed(), turn);
      return;
    case v1::CoordinatorMessage::kMembership:
      ProtocolError("coordd sent a second membership of one generation", turn);
      return;
    default:
      ProtocolError("coordd sent a message of a kind that this version does not know", turn);
  }
}

void WorkerState::OnPlan(const v1::CollectivePlan& plan, const WorkerTurn& turn) {
  // Planned before coordd knew that the generation was over for this rank: nobody will finish it.
  if (!succession_.live()) return;
  const ScheduledWork::Context context = ForSchedules(turn);
  const absl::Status status = PlanReader(generation_, options_.size, context).Read(plan);
  if (!status.ok()) ProtocolError(status.message(), turn);
}

void WorkerState::OnFailures(const v1::TensorFailures& failures, const WorkerTurn& turn) {
  if (succession_.expects_next()) return;  // it is reported again
  for (const v1::TensorFailure& failure : failures.failures()) {
    const auto found = FindMeant(pending_, generation_.process_sets,
                                 ProcessSetId{failure.process_set()}, failure.name());
    if (found == pending_.end()) continue;  // it ended with the generation
    absl::Status status = TensorFailureError(options_.generation, failure);
    const absl::Status& withdrawn = found->second.withdrawn;
    if (!withdrawn.ok()) {
      // It was this rank that gave up: its own reason first, then what coordd knows.
      status = absl::Status(withdrawn.code(),
                            absl::StrCat(withdrawn.message(), "; ", failure.message()));
    }
    pending_.Fail(found, std::move(status), turn);
  }
}

void WorkerState::OnProcessSetChange(const v1::ProcessSetChange& change, const WorkerTurn& turn) {
  if (!succession_.live()) return;  // nobody will use it
  const ProcessSetId id{change.process_set()};
  const std::optional<v1::ProcessSetChange> before = generation_.process_sets.Announced(id);
  const absl::Status applied = generation_.process_sets.OnChange(change, turn.out);
  if (!applied.ok()) {
    ProtocolError(applied.message(), turn);
    return;
  }
  generation_.heard.NoteChange(change);
  if (change.code() != 0 || !change.ranks().empty()) return;
  if (!before.has_value()) {
    generation_.heard.log().DropKept(id);
    return;
  }
  const absl::Status why =
      absl::FailedPreconditionError(absl::StrCat("process set ", ToInt(id), " has been removed"));
  pending_.FailThose([id](const TensorSpec& spec) { return spec.process_set == id; }, why, turn);
  generation_.launched.EndLane(LaneId{ToInt(id)});
  generation_.slots.Forget(id);
  if (const absl::Status status = generation_.schedules.OnSetEnded(id); !status.ok())
    ProtocolError(status.message(), turn);
}

bool WorkerState::JoinWaits() const {
  return pending_.join_is_unreported() && generation_.schedules.AwaitsCut();
}

void WorkerState::OnSchedule(const v1::Schedule& schedule, const WorkerTurn& turn) {
  if (!succession_.live()) return;
  const absl::Status status =
      generation_.schedules.OnSchedule(schedule, generation_.process_sets, options_.size,
                                       generation_.heard.position(), ForSchedules(turn));
  if (!status.ok()) ProtocolError(status.message(), turn);
}

void WorkerState::OnFreeze(const v1::Freeze& freeze, const WorkerTurn& turn) {
  if (!succession_.live()) return;
  generation_.heard.NoteSet(generation_.schedules.SetOf(freeze.id()));
  const absl::Status status = generation_.schedules.OnFreeze(freeze, ForSchedules(turn));
  if (!status.ok()) ProtocolError(status.message(), turn);
}

void WorkerState::OnCut(const v1::Cut& cut, const WorkerTurn& turn) {
  if (!succession_.live()) return;
  generation_.heard.NoteSet(generation_.schedules.SetOf(cut.id()));
  const auto fault = generation_.schedules.OnCut(cut, ForSchedules(turn));
  if (fault.has_value()) EndForFault(*fault, turn);
}

// Other ranks execute what this one cannot, unless coordd contradicts itself.
void WorkerState::EndForFault(const ScheduledWork::Fault& fault, const WorkerTurn& turn) {
  if (absl::IsInternal(fault.why)) return ProtocolError(fault.why.message(), turn);
  SendFailed(fault.batch, fault.tensor, fault.why.message(), Suspect{options_.rank}, turn);
  EndGeneration(Ended(fault.why.message(), fault.why.code()), /*abort=*/true, turn);
}

// --- what the data plane and the program say -----------------------------------------------------

void WorkerState::On(ProgramWaits& in, const WorkerTurn& turn) {
  generation_.schedules.OnProgramWaits(in.id, ForSchedules(turn));
}

void WorkerState::On(BatchDone& in, const WorkerTurn& turn) {
  const BatchKey key{in.lane, in.sequence};
  LaunchedBatches& launched = generation_.launched;
  LaunchedBatch batch = launched.Complete(in, turn.now);
  if (in.status.ok()) {
    generation_.schedules.NoteMark(key, batch,
                                   in.ended_at == absl::InfinitePast() ? turn.now : in.ended_at);
    if (batch.proves > 0) generation_.heard.log().Settle(batch.process_set, batch.proves);
    totals_.collectives += static_cast<int64_t>(batch.tensors.size());
    totals_.bytes += batch.bytes;
    ++totals_.batches;
    trace_.EndWhenComplete(ForTrace(turn));
    return;
  }
  if ((batch.overdue || succession_.aborted()) && !succession_.continues()) {
    const absl::Status& end = succession_.end();
    for (const auto& [id, spec] : batch.tensors) {
      absl::Status why = end;
      if (batch.overdue && spec->name == batch.overdue_tensor)
        why = absl::DeadlineExceededError(
            absl::StrCat("still executing at its deadline; ", end.message()));
      turn.out.push_back(FailTensor{id, ForTensor(spec->name, why)});
    }
    return;
  }
  // The data plane noticed first. Others are told, and what coordd knows about the peer is awaited.
  if (launched.local_failure().ok() && !succession_.aborted()) {
    launched.NoteLocalFailure(in.status);
    SendFailed(key, batch.first_tensor, in.status.message(), in.suspect, turn);
    AwaitVerdict(turn.now);
  }
  launched.AwaitVerdict(std::move(batch.tensors));
}

// The data plane of this generation has not come into being.
void WorkerState::On(ConnectFailed& in, const WorkerTurn& turn) {
  LaunchedBatches& launched = generation_.launched;
  if (in.generation != options_.generation || !succession_.end().ok() ||
      !launched.local_failure().ok())
    return;
  launched.NoteLocalFailure(absl::Status(
      in.status.code(), absl::StrCat("the data plane of rank ", ToInt(options_.rank),
                                     in.was_connected ? " failed: " : " could not be connected: ",
                                     in.status.message())));
  SendFailed(BatchKey{LaneId{0}, 0}, "", launched.local_failure().message(), in.suspect, turn);
  AwaitVerdict(turn.now);
}

// coordd is told of a failure here; it says who died, or what was seen here has to do.
void WorkerState::AwaitVerdict(absl::Time now) {
  generation_.launched.SetVerdictDeadline(!session_.can_send() ? now : now + kVerdictWait);
}

// --- time ----------------------------------------------------------------------------------------

void WorkerState::Tick(absl::Time now, std::vector<WorkerEffect>& out) {
  if (leaving_.stopped()) return;
  const WorkerTurn turn{now, out};
  session_.heartbeats().NoticeSleep(attached(), options_.lease, now);
  CheckDeadlines(turn);
  WithdrawProcessSets(turn);
  CheckExecuting(turn);
  CheckHeldAbort(turn);
  CheckSchedules(turn);
  CheckVerdict(turn);
  TryAgain(turn);
  CheckLease(turn);
  Report(turn);
  ReportRecovery(turn);
  SendHeartbeat(turn);
  LeaveWhenDrained(turn);
}

absl::Time WorkerState::NextDeadline() const {
  if (leaving_.stopped()) return absl::InfiniteFuture();
  absl::Time next =
      std::min({generation_.launched.verdict_deadline(), succession_.NextDeadline(),
                session_.NextDeadline(), generation_.process_sets.NextDeadline(),
                NextScheduleDeadline(), pending_.next_deadline(), leaving_.NextDeadline()});
  if (sends_heartbeats()) next = std::min(next, session_.heartbeats().next_heartbeat());
  if (counts_lease()) next = std::min(next, session_.heartbeats().lease_until());
  if (!succession_.aborted()) next = std::min(next, generation_.launched.NextDeadline());
  return next;
}

absl::Time WorkerState::NextScheduleDeadline() const {
  return std::min(generation_.launched.left_behind_deadline(),
                  generation_.schedules.NextDeadline());
}

void WorkerState::CheckDeadlines(const WorkerTurn& turn) {
  if (pending_.next_deadline() > turn.now) return;
  const std::vector<TensorId> late = pending_.DueBy(turn.now);
  for (TensorId id : late) {
    const PendingTensors::Tensor& tensor = pending_.Find(id)->second;
    if (tensor.withdrawn.ok() || !attached()) continue;
    EndGeneration(Ended(absl::StrCat("coordd did not answer the withdrawal of tensor ",
                                     tensor.spec->name, " within ", SecondsText(kWithdrawalAnswer)),
                        absl::StatusCode::kUnavailable),
                  /*abort=*/false, turn);
    return;
  }
  // Others may wait for what coordd has not heard of yet: it is told, and that it is withdrawn.
  Report(turn);
  for (TensorId id : late) {
    const auto tensor = pending_.Find(id);
    if (!tensor->second.withdrawn.ok()) {
      pending_.SetDeadline(tensor, turn.now + kWithdrawalAnswer);  // coordd cannot have answered
      continue;
    }
    const absl::Status why = absl::DeadlineExceededError(absl::StrCat(
        "not every rank had submitted it ", SecondsText(turn.now - tensor->second.submitted_at),
        " after rank ", ToInt(options_.rank), " (generation ", ToInt(options_.generation), ")"));
    if (tensor->second.reported) {
      SendAll(pending_.Withdraw({id}, why, turn.now), turn);
    } else {
      pending_.Fail(tensor, why, turn);
    }
  }
}

void WorkerState::WithdrawProcessSets(const WorkerTurn& turn) {
  absl::StatusOr<std::vector<v1::ProcessSetRequest>> due =
      generation_.process_sets.Withdraw(turn.now, /*answerable=*/attached());
  if (!due.ok()) {
    EndGeneration(Ended(due.status().message(), due.status().code()), /*abort=*/false, turn);
    return;
  }
  for (v1::ProcessSetRequest& request : *due) {
    v1::WorkerMessage message;
    *message.mutable_process_set_request() = std::move(request);
    Send(std::move(message), turn);
  }
}

void WorkerState::CheckExecuting(const WorkerTurn& turn) {
  if (succession_.aborted()) return;
  const auto* overdue = generation_.launched.TakeOverdue(turn.now);
  if (overdue == nullptr) return;
  const auto& [key, batch] = *overdue;
  const std::string what =
      absl::StrCat("tensor ", batch.overdue_tensor, " was still executing at its deadline on rank ",
                   ToInt(options_.rank));
  SendFailed(key, batch.overdue_tensor, what, std::nullopt, turn);
  EndGeneration(Ended(what), /*abort=*/true, turn);
}

void WorkerState::CheckSchedules(const WorkerTurn& turn) {
  generation_.schedules.ClearQuestion();
  if (generation_.launched.TakeLeftBehind(turn.now)) {
    const absl::Status& end = succession_.end();
    EndGeneration(end.ok() ? absl::CancelledError("this worker is shutting down") : end,
                  /*abort=*/true, turn);
  }
  const absl::Status status = generation_.schedules.Tick(ForSchedules(turn));
  if (!status.ok()) EndGeneration(Ended(status.message(), status.code()), /*abort=*/true, turn);
}

void WorkerState::CheckVerdict(const WorkerTurn& turn) {
  if (turn.now < generation_.launched.verdict_deadline()) return;
  // coordd has not said who died: what the data plane saw has to do.
  const absl::string_view seen = generation_.launched.local_failure().message();
  const absl::Status& end = succession_.end();
  EndGeneration(
      end.ok() ? Ended(seen) : absl::Status(end.code(), absl::StrCat(end.message(), "; ", seen)),
      /*abort=*/true, turn);
}

void WorkerState::CheckLease(const WorkerTurn& turn) {
  if (turn.now < session_.heartbeats().lease_until() || !counts_lease()) return;
  const absl::Status silent = absl::UnavailableError(
      absl::StrCat("coordd has not answered this rank's heartbeats for ",
                   SecondsText(options_.lease), ": it may count the rank as lost"));
  if (MayResume(silent)) return Detach(silent, turn);
  GiveUp(Ended(silent.message(), silent.code()), turn);
}

void WorkerState::Report(const WorkerTurn& turn) {
  // In the next generation, or to the next coordd.
  if (succession_.expects_next() || !attached()) return;
  if (pending_.unreported() > 0) SendAll(pending_.Report(generation_.slots, JoinWaits()), turn);
}

void WorkerState::SendHeartbeat(const WorkerTurn& turn) {
  if (turn.now < session_.heartbeats().next_heartbeat() || !sends_heartbeats()) return;
  session_.heartbeats().Sent(session_.terms().pace, turn.now);
  v1::WorkerMessage message;
  *message.mutable_heartbeat() = HeartbeatOf(pending_, generation_, totals_, turn.now);
  Send(std::move(message), turn);
}

void WorkerState::SendAll(std::vector<v1::WorkerMessage> messages, const WorkerTurn& turn) {
  for (v1::WorkerMessage& message : messages) Send(std::move(message), turn);
}

void WorkerState::SendFailed(BatchKey batch, const std::string& tensor, absl::string_view detail,
                             std::optional<Suspect> suspect, const WorkerTurn& turn) {
  v1::WorkerMessage message;
  v1::CollectiveFailed& failed = *message.mutable_collective_failed();
  failed.set_lane(ToInt(batch.first));
  failed.set_sequence(batch.second);
  failed.set_tensor(tensor);
  failed.set_detail(ShortenedText(detail, kMaxReasonBytes));
  failed.set_suspect_rank(suspect.has_value() ? ToInt(suspect->rank) : -1);
  failed.set_suspect_silent(suspect.has_value() && suspect->silent);
  Send(std::move(message), turn);
}

}  // namespace coordd
