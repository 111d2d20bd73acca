// What WorkerState does at the end of a turn: deadlines, reports, heartbeats, the goodbye.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/execute/worker_errors.h"
#include "worker/protocol/worker_state.h"

namespace coordd {
namespace {

// A bound of session.proto.
constexpr size_t kMaxLanesPerHeartbeat = 256;

void SetDuration(absl::Duration from, google::protobuf::Duration* to) {
  to->set_seconds(absl::ToInt64Seconds(from));
  to->set_nanos(static_cast<int32_t>((from - absl::Seconds(to->seconds())) / absl::Nanoseconds(1)));
}

void SetWaiting(const std::string& tensor, absl::Duration since, v1::LanePosition& position) {
  position.set_oldest_waiting(tensor);
  SetDuration(since, position.mutable_waiting());
}

}  // namespace

void WorkerState::Tick(absl::Time now, std::vector<WorkerEffect>& out) {
  if (stopped_) return;
  const WorkerTurn turn{now, out};
  session_.heartbeats().NoticeSleep(attached(), options_.lease, now);
  CheckDeadlines(turn);
  WithdrawProcessSets(turn);
  CheckExecuting(turn);
  CheckAskedAbort(turn);
  CheckSchedules(turn);
  if (now >= launched_.verdict_deadline()) {
    // coordd has not said who died: what the data plane saw has to do.
    absl::Status why =
        GenerationEndedError(options_.generation, launched_.local_failure().message());
    if (!end_.ok())
      why = absl::Status(end_.code(),
                         absl::StrCat(end_.message(), "; ", launched_.local_failure().message()));
    EndGeneration(std::move(why), /*abort=*/true, turn);
  }
  TryAgain(turn);
  if (now >= session_.heartbeats().lease_until() && counts_lease()) {
    const absl::Status silent = absl::UnavailableError(
        absl::StrCat("coordd has not answered this rank's heartbeats for ",
                     SecondsText(options_.lease), ": it may count the rank as lost"));
    if (MayResume(silent)) {
      Detach(silent, turn);
    } else {
      GiveUp(GenerationEndedError(options_.generation, silent.message(), silent.code()), turn);
    }
  }
  Report(turn);
  ReportRecovery(turn);
  SendHeartbeat(turn);
  LeaveWhenDrained(turn);
}

absl::Time WorkerState::NextDeadline() const {
  if (stopped_) return absl::InfiniteFuture();
  absl::Time next = launched_.verdict_deadline();
  if (asked_abort_.has_value()) next = std::min(next, asked_abort_deadline_);
  next = std::min(next, session_.NextDeadline());
  if (session_.can_send() && !left_) next = std::min(next, session_.heartbeats().next_heartbeat());
  if (counts_lease()) next = std::min(next, session_.heartbeats().lease_until());
  next = std::min(
      {next, process_sets_.NextDeadline(), NextScheduleDeadline(), pending_.next_deadline()});
  if (leaving_ && !left_) next = std::min(next, goodbye_.next_deadline());
  if (!aborted_) next = std::min(next, launched_.NextDeadline());
  return next;
}

void WorkerState::CheckDeadlines(const WorkerTurn& turn) {
  if (pending_.next_deadline() > turn.now) return;
  const std::vector<TensorId> late = pending_.DueBy(turn.now);
  for (TensorId id : late) {
    const PendingTensors::Tensor& tensor = pending_.Find(id)->second;
    if (tensor.withdrawn.ok() || !attached()) continue;
    EndGeneration(GenerationEndedError(
                      options_.generation,
                      absl::StrCat("coordd did not answer the withdrawal of tensor ",
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
      process_sets_.Withdraw(turn.now, /*answerable=*/attached());
  if (!due.ok()) {
    EndGeneration(
        GenerationEndedError(options_.generation, due.status().message(), due.status().code()),
        /*abort=*/false, turn);
    return;
  }
  for (v1::ProcessSetRequest& request : *due) {
    v1::WorkerMessage message;
    *message.mutable_process_set_request() = std::move(request);
    Send(std::move(message), turn);
  }
}

void WorkerState::CheckExecuting(const WorkerTurn& turn) {
  if (aborted_) return;
  const auto* overdue = launched_.TakeOverdue(turn.now);
  if (overdue == nullptr) return;
  const auto& [key, batch] = *overdue;
  const std::string what =
      absl::StrCat("tensor ", batch.overdue_tensor, " was still executing at its deadline on rank ",
                   ToInt(options_.rank));
  SendFailed(key, batch.overdue_tensor, what, std::nullopt, turn);
  EndGeneration(GenerationEndedError(options_.generation, what), /*abort=*/true, turn);
}

void WorkerState::Report(const WorkerTurn& turn) {
  if (expects_next_ || !attached()) return;  // in the next generation, or to the next coordd
  if (pending_.unreported() > 0) SendAll(pending_.Report(slots_, JoinWaits()), turn);
}

void WorkerState::SendHeartbeat(const WorkerTurn& turn) {
  if (turn.now < session_.heartbeats().next_heartbeat() || !session_.can_send() || left_) return;
  session_.heartbeats().Sent(session_.terms().pace, turn.now);
  v1::WorkerMessage message;
  v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
  heartbeat.set_sent_ns(absl::ToUnixNanos(turn.now));
  heartbeat.set_collectives_completed(totals_.collectives);
  heartbeat.set_bytes_reduced(totals_.bytes);
  heartbeat.set_batches_completed(totals_.batches);
  // A rank that waits for its first batch has a position too.
  std::map<LaneId, LaneProgress> lanes = {{LaneId{0}, {}}};
  for (const LaneProgress& lane : launched_.Progress()) lanes[lane.lane] = lane;
  std::map<LaneId, const PendingTensors::Tensor*> oldest;  // they are ordered by age
  for (const auto& [id, tensor] : pending_.tensors()) {
    const LaneId lane{ToInt(tensor.spec->process_set)};
    if (oldest.emplace(lane, &tensor).second) lanes.try_emplace(lane, LaneProgress{lane});
  }
  for (const auto& [id, scheduled] : schedules_.lanes()) lanes.try_emplace(id, LaneProgress{id});
  for (const auto& [id, lane] : lanes) {
    if (static_cast<size_t>(heartbeat.lanes_size()) == kMaxLanesPerHeartbeat) break;
    v1::LanePosition& position = *heartbeat.add_lanes();
    position.set_lane(ToInt(id));
    position.set_launched(lane.launched);
    position.set_completed(lane.completed);
    const auto scheduled = schedules_.lanes().find(id);
    if (scheduled != schedules_.lanes().end()) {
      TellOfSchedule(scheduled->second, turn.now, position);
      continue;
    }
    const auto waiting = oldest.find(id);
    if (waiting == oldest.end()) continue;
    SetWaiting(waiting->second->spec->name, turn.now - waiting->second->submitted_at, position);
  }
  Send(std::move(message), turn);
}

void WorkerState::TellOfSchedule(ScheduledWork::Scheduled& scheduled, absl::Time now,
                                 v1::LanePosition& position) {
  if (const HeldTensor* held = scheduled.lane->Oldest())
    SetWaiting(held->spec->name, now - held->submitted_at, position);
  for (const CycleMarks::Mark& mark : scheduled.marks->Take()) {
    v1::LaneMark& told = *position.add_marks();
    told.set_cycles(mark.cycles);
    told.set_busy_ns(absl::ToInt64Nanoseconds(mark.busy));
  }
}

// Of a failure coordd hears before the others can see that what they execute with this rank ends.
void WorkerState::LeaveFailing(const WorkerTurn& turn) {
  if (!left_ && !session_.detached()) SayGoodbye(turn);
  const bool is_known = session_.ended() || session_.detached();
  if (!is_known || (aborted_ && !session_.detached())) return;
  StopForced stop;
  On(stop, turn);
}

void WorkerState::LeaveWhenDrained(const WorkerTurn& turn) {
  if (leaving_ && goodbye_.failing()) LeaveFailing(turn);
  if (!leaving_ || !pending_.empty() || !launched_.empty() || launched_.awaits_verdict()) return;
  if (end_.ok() && !session_.ended() && goodbye_.Holds(turn.now)) {
    if (goodbye_.TakeFinished()) turn.out.push_back(WorkFinished{});
    return;
  }
  if (session_.detached()) return;  // the goodbye waits for coordd
  SayGoodbye(turn);
  if (session_.ended()) {
    stopped_ = true;
    turn.out.push_back(Stopped{});
  }
}

void WorkerState::SayGoodbye(const WorkerTurn& turn) {
  if (!left_) {
    left_ = true;
    asked_abort_.reset();
    EndTrace(/*send=*/true, turn);
    const bool lives = end_.ok();
    if (lives) {
      end_ = absl::CancelledError("this worker has left the job");
      turn.out.push_back(GenerationEnded{end_});
    }
    v1::WorkerMessage message;
    message.mutable_leave()->set_reason(lives ? "shut down by its program"
                                              : "after the generation had ended");
    message.mutable_leave()->set_failure(ShortenedText(goodbye_.failure(), kMaxReasonBytes));
    message.mutable_leave()->set_drained(is_to_leave());
    message.mutable_leave()->set_bytes_reduced(totals_.bytes);
    message.mutable_leave()->set_batches_completed(totals_.batches);
    // Also to one that has not taken it back yet: there is nothing to be told.
    session_.StopResuming();
    Send(std::move(message), turn);
    turn.out.push_back(CloseStream{});
  }
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
