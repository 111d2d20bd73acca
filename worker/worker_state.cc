#include "worker/worker_state.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "worker/worker_errors.h"

namespace coordd {
namespace {

// What travels in one batch must agree in everything that the executor does once for all of it.
bool FusesWith(const TensorSpec& a, const TensorSpec& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root_rank == b.root_rank &&
         a.prescale_factor == b.prescale_factor && a.postscale_factor == b.postscale_factor &&
         a.memory == b.memory && a.kind != CollectiveKind::kAlltoall &&
         a.kind != CollectiveKind::kBarrier;
}

}  // namespace

WorkerState::WorkerState(const WorkerStateOptions& options, absl::Time now)
    : options_(options),
      received_sequence_(options.received_sequence),
      next_heartbeat_(now),
      lease_until_(now + options.lease) {}

void WorkerState::Step(WorkerEvent in, absl::Time now, std::vector<WorkerEffect>& out) {
  std::visit([&](auto& event) { On(event, now, out); }, in);
}

void WorkerState::On(TensorsSubmitted& in, absl::Time now, std::vector<WorkerEffect>& out) {
  absl::Status refused = end_;
  if (leaving_) refused = absl::CancelledError("this worker is shutting down");
  for (SubmittedTensor& tensor : in.tensors) {
    const std::string& name = tensor.spec.name;
    if (refused.ok() && pending_.contains(name)) {
      // Worker::Submit refuses it first; this keeps the state valid whatever comes.
      out.push_back(FailTensor{
          tensor.id, absl::AlreadyExistsError(absl::StrCat("tensor ", name, ": pending already"))});
      continue;
    }
    if (!refused.ok()) {
      out.push_back(FailTensor{tensor.id, ForTensor(name, refused)});
      continue;
    }
    unreported_.push_back(name);
    by_age_.emplace(tensor.id, name);
    deadlines_.emplace(tensor.deadline, name);
    Pending pending{tensor.id, std::move(tensor.spec), now, tensor.deadline, false, {}};
    pending_.emplace(unreported_.back(), std::move(pending));
  }
}

void WorkerState::On(CoordinatorSaid& in, absl::Time now, std::vector<WorkerEffect>& out) {
  const v1::CoordinatorMessage& message = in.message;
  if (message.sequence() != received_sequence_ + 1) {
    ProtocolError(absl::StrCat("coordd sent message ", message.sequence(), ", expected ",
                               received_sequence_ + 1),
                  out);
    return;
  }
  received_sequence_ = message.sequence();
  const bool older =
      message.epoch() < ToInt(options_.epoch) || message.generation() < ToInt(options_.generation);
  const bool newer =
      message.epoch() > ToInt(options_.epoch) || message.generation() > ToInt(options_.generation);
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kWaiting:
      return;  // news of a job that gathers; no part of a generation
    case v1::CoordinatorMessage::kShutdown:
      EndGeneration(GenerationEndedError(options_.generation, StoppingText(message.shutdown()),
                                         absl::StatusCode::kUnavailable),
                    /*abort=*/false, out);
      return;
    case v1::CoordinatorMessage::kLeaseAck: {
      // Only what is counted from our own clock's reading is safe to assume.
      const absl::Time seen = absl::FromUnixNanos(message.lease_ack().echoed_sent_ns());
      const v1::LeaseAck& ack = message.lease_ack();
      lease_until_ =
          std::max(lease_until_, std::min(seen, now) + absl::Seconds(ack.lease().seconds()) +
                                     absl::Nanoseconds(ack.lease().nanos()));
      return;
    }
    default:
      break;
  }
  if (older) return;  // refused by number
  if (newer) {
    ProtocolError(absl::StrCat("coordd sent a message of epoch ", message.epoch(), ", generation ",
                               message.generation(), "; this worker is in epoch ",
                               ToInt(options_.epoch), ", generation ", ToInt(options_.generation)),
                  out);
    return;
  }
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kPlan:
      OnPlan(message.plan(), now, out);
      return;
    case v1::CoordinatorMessage::kTensorFailures:
      OnFailures(message.tensor_failures(), out);
      return;
    case v1::CoordinatorMessage::kAbort:
      OnAbort(message.abort(), out);
      return;
    case v1::CoordinatorMessage::kMembership:
      ProtocolError("coordd sent a second membership of one generation", out);
      return;
    default:
      ProtocolError("coordd sent a message of a kind that this version does not know", out);
  }
}

void WorkerState::OnPlan(const v1::CollectivePlan& plan, absl::Time now,
                         std::vector<WorkerEffect>& out) {
  // Planned before coordd knew that the generation was over for this rank: nobody will finish it.
  if (!end_.ok()) return;
  for (const v1::FusedBatch& batch : plan.batches()) {
    Executing executing;
    const absl::Status status = PlanBatch(batch, now, executing, out);
    if (!status.ok()) {
      // Its tensors are neither pending nor executing any more: they fail with the generation.
      for (auto& tensor : executing.tensors) awaiting_verdict_.push_back(std::move(tensor));
      ProtocolError(status.message(), out);
      return;
    }
  }
}

absl::Status WorkerState::PlanBatch(const v1::FusedBatch& batch, absl::Time now,
                                    Executing& executing, std::vector<WorkerEffect>& out) {
  const LaneId lane{batch.lane()};
  if (batch.tensors().empty()) {
    return absl::InternalError(
        absl::StrCat("coordd planned batch ", batch.sequence(), " without a tensor"));
  }
  LaunchBatch launch{lane, batch.sequence(), {}, {}};
  executing.deadline = absl::InfiniteFuture();
  std::optional<TensorSpec> first;
  for (const std::string& name : batch.tensors()) {
    const auto found = pending_.find(name);
    if (found == pending_.end() || !found->second.reported) {
      return absl::InternalError(absl::StrCat("coordd planned tensor ", name, " in batch ",
                                              batch.sequence(),
                                              ", which this rank has not submitted"));
    }
    Pending& pending = found->second;
    if (first.has_value() && !FusesWith(*first, pending.spec)) {
      return absl::InternalError(absl::StrCat(
          "coordd planned tensor ", name, " (", ToString(pending.spec), ") in one batch with ",
          first->name, " (", ToString(*first), "), with which it cannot travel"));
    }
    launch.tensors.push_back(pending.id);
    launch.negotiation.push_back(now - pending.submitted_at);
    executing.tensors.emplace_back(pending.id, name);
    executing.bytes += SizeBytes(pending.spec);
    // A withdrawn tensor's own deadline has passed; it gets as long again as coordd's answer took.
    if (pending.withdrawn.ok() && pending.deadline < executing.deadline) {
      executing.deadline = pending.deadline;
      executing.overdue_tensor = name;
    } else if (!pending.withdrawn.ok() && now + kWithdrawalAnswer < executing.deadline) {
      executing.deadline = now + kWithdrawalAnswer;
      executing.overdue_tensor = name;
    }
    if (!first.has_value()) first = std::move(pending.spec);
    Erase(name);
  }
  COORDD_RETURN_IF_ERROR(sequencer_.Launch(lane, batch.sequence()));
  executing_.emplace(BatchKey{lane, batch.sequence()}, std::move(executing));
  out.push_back(std::move(launch));
  return absl::OkStatus();
}

void WorkerState::OnFailures(const v1::TensorFailures& failures, std::vector<WorkerEffect>& out) {
  for (const v1::TensorFailure& failure : failures.failures()) {
    const auto found = pending_.find(failure.name());
    if (found == pending_.end()) continue;  // it ended with the generation
    absl::Status status = TensorFailureError(options_.generation, failure);
    if (!found->second.withdrawn.ok()) {
      // It was this rank that gave up: its own reason first, then what coordd knows.
      status =
          absl::Status(found->second.withdrawn.code(),
                       absl::StrCat(found->second.withdrawn.message(), "; ", failure.message()));
    }
    out.push_back(FailTensor{found->second.id, std::move(status)});
    Erase(failure.name());
  }
}

void WorkerState::OnAbort(const v1::Abort& abort, std::vector<WorkerEffect>& out) {
  EndGeneration(GenerationEndedBy(options_.generation, abort), abort.in_flight(), out);
}

void WorkerState::On(StreamEnded& in, absl::Time now, std::vector<WorkerEffect>& out) {
  stream_ended_ = true;
  if (!left_ && end_.ok()) {
    const absl::string_view detail =
        in.status.ok() ? "without giving a reason" : in.status.message();
    EndGeneration(
        GenerationEndedError(options_.generation,
                             absl::StrCat("the connection to coordd has ended: ", detail),
                             absl::IsUnavailable(in.status) ? absl::StatusCode::kUnavailable
                                                            : absl::StatusCode::kAborted),
        /*abort=*/false, out);
  }
  // coordd will say nothing more about who was lost.
  if (!awaiting_verdict_.empty()) verdict_deadline_ = now;
}

void WorkerState::On(BatchDone& in, absl::Time now, std::vector<WorkerEffect>& out) {
  const auto found = executing_.find(BatchKey{in.lane, in.sequence});
  COORDD_CHECK(found != executing_.end());
  Executing batch = std::move(found->second);
  const BatchKey key = found->first;
  executing_.erase(found);
  sequencer_.Complete(in.lane, in.sequence);
  if (in.status.ok()) {
    collectives_completed_ += static_cast<int64_t>(batch.tensors.size());
    bytes_reduced_ += batch.bytes;
    return;
  }
  if (batch.overdue) {
    for (const auto& [id, name] : batch.tensors) {
      absl::Status why = end_;
      if (name == batch.overdue_tensor)
        why = absl::DeadlineExceededError(
            absl::StrCat("still executing at its deadline; ", end_.message()));
      out.push_back(FailTensor{id, ForTensor(name, why)});
    }
    return;
  }
  if (aborted_) {
    for (const auto& [id, name] : batch.tensors)
      out.push_back(FailTensor{id, ForTensor(name, end_)});
    return;
  }
  // The data plane noticed first. Others are told, and what coordd knows about the peer is awaited.
  if (local_failure_.ok()) {
    local_failure_ = in.status;
    SendFailed(key, batch.tensors.front().second, in.status.message(), in.suspect, out);
    verdict_deadline_ = stream_ended_ ? now : now + kVerdictWait;
  }
  for (auto& tensor : batch.tensors) awaiting_verdict_.push_back(std::move(tensor));
}

void WorkerState::On(LeaveRequested&, absl::Time now, std::vector<WorkerEffect>& out) {
  if (leaving_) return;
  leaving_ = true;
  const absl::Status why = absl::CancelledError("this worker is shutting down");
  std::vector<std::string> reported;
  for (const std::string& name : unreported_) {
    out.push_back(FailTensor{pending_.at(name).id, ForTensor(name, why)});
    Erase(name);
  }
  unreported_.clear();
  for (const auto& [id, name] : by_age_)
    if (pending_.at(name).withdrawn.ok()) reported.push_back(name);
  Withdraw(reported, why, now, out);
}

void WorkerState::On(StopForced&, absl::Time now, std::vector<WorkerEffect>& out) {
  leaving_ = true;
  EndGeneration(absl::CancelledError("this worker was shut down before its collectives had ended"),
                /*abort=*/true, out);
  // The end of the stream is not waited for.
  left_ = true;
  stream_ended_ = true;
  verdict_deadline_ = now;
}

void WorkerState::EndGeneration(absl::Status why, bool abort, std::vector<WorkerEffect>& out) {
  if (end_.ok() || (abort && !aborted_)) {
    end_ = std::move(why);
    out.push_back(GenerationEnded{end_});
  }
  if (abort && !aborted_) {
    aborted_ = true;
    out.push_back(AbortExecution{});
  }
  for (const auto& [id, name] : by_age_) out.push_back(FailTensor{id, ForTensor(name, end_)});
  pending_.clear();
  by_age_.clear();
  deadlines_.clear();
  unreported_.clear();
  // The verdict on what failed here before: only an abort of what executes says who died in it.
  if (!aborted_) return;
  for (const auto& [id, name] : awaiting_verdict_)
    out.push_back(FailTensor{id, ForTensor(name, end_)});
  awaiting_verdict_.clear();
  verdict_deadline_ = absl::InfiniteFuture();
}

void WorkerState::ProtocolError(absl::string_view what, std::vector<WorkerEffect>& out) {
  SendFailed(BatchKey{LaneId{0}, 0}, "", what, std::nullopt, out);
  EndGeneration(GenerationEndedError(options_.generation, what, absl::StatusCode::kInternal),
                /*abort=*/true, out);
}

void WorkerState::Erase(const std::string& name) {
  const auto found = pending_.find(name);
  by_age_.erase(found->second.id);
  deadlines_.erase({found->second.deadline, name});
  pending_.erase(found);
}

void WorkerState::SetDeadline(const std::string& name, Pending& pending, absl::Time deadline) {
  deadlines_.erase({pending.deadline, name});
  pending.deadline = deadline;
  deadlines_.emplace(deadline, name);
}

}  // namespace coordd
