#include "worker/protocol/worker_state.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "worker/execute/worker_errors.h"

namespace coordd {
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
      slots_(options.slots),
      process_sets_(options.rank, options.size, options.process_sets),
      session_(TermsOf(options), options.epoch, options.session, options.received_sequence,
               options.seed ^ std::hash<std::string>()(options.join.worker_id()), now),
      last_process_set_(options.process_sets.last_process_set()) {}

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
    absl::Status refused = end_;
    if (leaving_) refused = absl::CancelledError("this worker is shutting down");
    if (refused.ok() && IsOutdated(in.generation, *tensor.spec)) refused = change_;
    if (refused.ok() && !process_sets_.IsMember(tensor.spec->process_set))
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
    if (!schedules_.empty()) {
      std::optional<ScheduledWork::Fault> fault;
      const bool taken = schedules_.Take(tensor, ForSchedules(turn), fault);
      if (fault.has_value()) EndForFault(*fault, turn);
      if (taken) continue;
    }
    const bool joins = tensor.spec->kind == CollectiveKind::kJoin;
    pending_.Add(tensor.id, {std::move(tensor.spec), turn.now, tensor.deadline, false, {}});
    if (joins) schedules_.Fill(ForSchedules(turn));
  }
}

int64_t WorkerState::pending_tensors() const {
  return static_cast<int64_t>(pending_.size()) + schedules_.held();
}

void WorkerState::On(ProcessSetAsked& in, const WorkerTurn& turn) {
  absl::Status refused = end_;
  if (leaving_) refused = absl::CancelledError("this worker is shutting down");
  if (refused.ok() && (expects_next_ || IsOutdated(in.generation))) refused = change_;
  if (refused.ok() && pending_.has_joined())
    refused = absl::FailedPreconditionError(
        "this rank has joined, expected no request for a process set until the join ends");
  if (!refused.ok()) {
    turn.out.push_back(ProcessSetAnswer{in.token, std::move(refused), ProcessSetId{}});
    return;
  }
  // What was submitted before the request reaches coordd before it: the set may be about to end.
  Report(turn);
  v1::WorkerMessage message;
  *message.mutable_process_set_request() = process_sets_.Ask(std::move(in), turn.now);
  Send(std::move(message), turn);
}

// long: a case for each kind of message
void WorkerState::On(CoordinatorSaid& in, const WorkerTurn& turn) {
  const v1::CoordinatorMessage& message = in.message;
  if (!IsOfThisSession(in, turn)) return;
  if (!session_.TakeSequence(message.sequence())) {
    ProtocolError(absl::StrCat("coordd sent message ", message.sequence(), ", expected ",
                               session_.received_sequence() + 1),
                  turn);
    return;
  }
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kWaiting:
      return;  // news of a job that gathers; no part of a generation
    case v1::CoordinatorMessage::kShutdown:
      // It comes back: the end of the stream, which follows, is all that happens.
      if (message.shutdown().has_resume_within() && !options_.cluster_id.empty()) return;
      GiveUp(GenerationEndedError(options_.generation, StoppingText(message.shutdown()),
                                  absl::StatusCode::kUnavailable),
             turn);
      return;
    case v1::CoordinatorMessage::kDrainNotice:
      OnDrainNotice(message.drain_notice(), turn);
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
  if (next && begins && expects_next_ && message.epoch() == ToInt(session_.epoch())) {
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
  position_ = message.position();
  OnGenerationMessage(message, turn);
  Log(std::move(in.message));
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
      OnTrace(message.trace(), turn);
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
  if (!end_.ok() || expects_next_) return;
  for (const v1::FusedBatch& batch : plan.batches()) {
    LaunchedBatch executing;
    const absl::Status status = PlanBatch(batch, executing, turn);
    if (!status.ok()) {
      // Its tensors are neither pending nor executing any more: they fail with the generation.
      launched_.AwaitVerdict(std::move(executing.tensors));
      ProtocolError(status.message(), turn);
      return;
    }
  }
  if (plan.bindings().empty()) return;
  if (const absl::Status status = LearnSlots(plan); !status.ok())
    ProtocolError(status.message(), turn);
}

void WorkerState::On(StreamEnded& in, const WorkerTurn& turn) {
  if (!session_.IsLatest(in.stream)) return;  // one that was given up
  if (MayResume(in.status)) {
    Detach(in.status, turn);
    return;
  }
  const bool refused = session_.resuming();
  session_.End();  // nothing more is tried
  if (!left_ && (end_.ok() || expects_next_)) {
    const absl::string_view detail = !in.status.ok() ? in.status.message()
                                     : refused       ? "it gives no reason"
                                                     : "without giving a reason";
    // ABORTED: coordd stops, and its Shutdown was lost on the way.
    const bool stops = absl::IsUnavailable(in.status) || absl::IsAborted(in.status);
    GiveUp(
        refused
            ? GenerationEndedError(options_.generation,
                                   absl::StrCat("coordd does not take this rank back: ", detail))
            : GenerationEndedError(
                  options_.generation, absl::StrCat("the connection to coordd has ended: ", detail),
                  stops ? absl::StatusCode::kUnavailable : absl::StatusCode::kAborted),
        turn);
  }
  // coordd will say nothing more about who was lost.
  if (launched_.awaits_verdict()) launched_.SetVerdictDeadline(turn.now);
}

void WorkerState::On(BatchDone& in, const WorkerTurn& turn) {
  const BatchKey key{in.lane, in.sequence};
  LaunchedBatch batch = launched_.Complete(in, turn.now);
  if (in.status.ok()) {
    schedules_.NoteMark(key, batch, in.ended_at == absl::InfinitePast() ? turn.now : in.ended_at);
    if (batch.proves > 0) log_.Settle(batch.process_set, batch.proves);
    totals_.collectives += static_cast<int64_t>(batch.tensors.size());
    totals_.bytes += batch.bytes;
    ++totals_.batches;
    if (tracing_.until_cycle > 0) EndTraceWhenComplete(turn);
    return;
  }
  if (batch.overdue && !continues()) {
    for (const auto& [id, spec] : batch.tensors) {
      absl::Status why = end_;
      if (spec->name == batch.overdue_tensor)
        why = absl::DeadlineExceededError(
            absl::StrCat("still executing at its deadline; ", end_.message()));
      turn.out.push_back(FailTensor{id, ForTensor(spec->name, why)});
    }
    return;
  }
  if (aborted_ && !continues()) {
    for (const auto& [id, spec] : batch.tensors)
      turn.out.push_back(FailTensor{id, ForTensor(spec->name, end_)});
    return;
  }
  // The data plane noticed first. Others are told, and what coordd knows about the peer is awaited.
  if (launched_.local_failure().ok() && !aborted_) {
    launched_.NoteLocalFailure(in.status);
    SendFailed(key, batch.first_tensor, in.status.message(), in.suspect, turn);
    AwaitVerdict(turn.now);
  }
  launched_.AwaitVerdict(std::move(batch.tensors));
}

// coordd is told of a failure here; it says who died, or what was seen here has to do.
void WorkerState::AwaitVerdict(absl::Time now) {
  launched_.SetVerdictDeadline(!session_.can_send() ? now : now + kVerdictWait);
}

void WorkerState::On(LeaveRequested& in, const WorkerTurn& turn) {
  goodbye_.Request(in, /*may_fail=*/end_.ok() || options_.on_failure != OnFailure::kEnd);
  if (goodbye_.failing() && !left_)
    EndGeneration(
        absl::CancelledError(absl::StrCat("this rank's program has failed: ", goodbye_.failure())),
        /*abort=*/false, turn);
  if (leaving_) return;
  leaving_ = true;
  const absl::Status why = absl::CancelledError("this worker is shutting down");
  process_sets_.FailRequests(why, turn.out);
  pending_.FailUnreported(why, turn);
  if (expects_next_) launched_.FailAwaiting(why, turn);
  std::vector<TensorId> reported;
  for (const auto& [id, tensor] : pending_.tensors())
    if (tensor.withdrawn.ok()) reported.push_back(id);
  SendAll(pending_.Withdraw(reported, why, turn.now), turn);
  schedules_.Leave(why, turn);
  launched_.WatchSchedules(turn.now);
}

void WorkerState::On(StopForced&, const WorkerTurn& turn) {
  leaving_ = true;
  EndGeneration(absl::CancelledError("this worker was shut down before its collectives had ended"),
                /*abort=*/true, turn);
  // Neither coordd nor the end of the stream is waited for.
  session_.End();
  left_ = true;
  launched_.SetVerdictDeadline(turn.now);
}

void WorkerState::EndGeneration(absl::Status why, bool abort, const WorkerTurn& turn) {
  const bool may_follow = options_.on_failure != OnFailure::kEnd && abort && end_.ok() &&
                          !leaving_ && !session_.ended() && !absl::IsInternal(why);
  if (may_follow && continues()) {
    Interrupt(why, turn);
    return;
  }
  if (end_.ok() || (abort && !aborted_)) {
    // coordd is told of every failure, and then says what follows.
    expects_next_ = may_follow;
    end_ = expects_next_ ? GenerationChanged(why) : std::move(why);
    turn.out.push_back(GenerationEnded{end_, /*for_good=*/!expects_next_});
  }
  if (abort && !aborted_) {
    aborted_ = true;
    turn.out.push_back(AbortExecution{});
  }
  FailEverything(turn);
}

void WorkerState::FailEverything(const WorkerTurn& turn) {
  pending_.FailAll(end_, turn);
  process_sets_.FailRequests(end_, turn.out);
  schedules_.FailAll(end_, turn);
  log_.Clear();
  if (!expects_next_) session_.StopTrying();  // there is nothing to come back for
  // The verdict on what failed here before: only an abort of what executes says who died in it.
  if (!aborted_) return;
  launched_.FailAwaiting(end_, turn);
  launched_.SetVerdictDeadline(absl::InfiniteFuture());
}

void WorkerState::ProtocolError(absl::string_view what, const WorkerTurn& turn) {
  SendFailed(BatchKey{LaneId{0}, 0}, "", what, std::nullopt, turn);
  const absl::Status why =
      GenerationEndedError(options_.generation, what, absl::StatusCode::kInternal);
  if (expects_next_) return EndForGood(why, turn);
  EndGeneration(why, /*abort=*/true, turn);
}

}  // namespace coordd
