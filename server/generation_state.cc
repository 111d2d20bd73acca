#include "server/generation_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/proto_convert.h"
#include "common/protocol_bounds.h"
#include "common/status_macros.h"
#include "server/fusion_planner.h"
#include "server/validate_message.h"

namespace coordd {
namespace {

absl::StatusOr<TensorSpec> Decode(const v1::TensorSpec& proto, int32_t world_size) {
  COORDD_RETURN_IF_ERROR(CheckImplemented(proto));
  COORDD_ASSIGN_OR_RETURN(TensorSpec spec, FromProto(proto));
  COORDD_RETURN_IF_ERROR(Validate(spec, world_size));
  return spec;
}

// What is left of a spec that could not be decoded: enough to fail its tensor and its group.
TensorSpec NamesOnly(const v1::TensorSpec& proto) {
  TensorSpec spec;
  spec.name = proto.name();
  if (proto.group_size() >= 1 && proto.group_size() <= kMaxGroupSize) {
    spec.group = proto.group();
    spec.group_size = proto.group_size();
  }
  return spec;
}

}  // namespace

GenerationState::GenerationState(Identity identity, const ServerOptions& options,
                                 std::vector<SessionId> by_rank)
    : identity_(std::move(identity)),
      options_(options),
      by_rank_(std::move(by_rank)),
      table_(size(), ReadinessBounds{.max_pending = options.max_pending_tensors_per_job}) {}

void GenerationState::OnTensorsReady(Rank rank, const v1::TensorsReady& ready, absl::Time now,
                                     Effects& effects) {
  if (ended_) return;
  std::vector<FailedTensor> failed;
  for (const v1::TensorSpec& proto : ready.tensors()) {
    const absl::StatusOr<TensorSpec> spec = Decode(proto, size());
    if (spec.ok()) {
      table_.Report(rank, *spec, now, failed);
    } else {
      const absl::Status why(spec.status().code(),
                             absl::StrCat(spec.status().message(), " (rank ", ToInt(rank), ")"));
      table_.Reject(rank, NamesOnly(proto), why, failed);
    }
  }
  DeliverFailures(failed, effects);
  NoteStallsEnded(effects);
}

void GenerationState::OnTensorsWithdrawn(Rank rank, const v1::TensorsWithdrawn& withdrawn,
                                         Effects& effects) {
  if (ended_) return;
  std::vector<FailedTensor> failed;
  for (const std::string& name : withdrawn.names()) {
    table_.Withdraw(rank, name, withdrawn.reason(), failed);
  }
  DeliverFailures(failed, effects);
  NoteStallsEnded(effects);
}

void GenerationState::Tick(absl::Time now, Effects& effects) {
  if (ended_) return;
  Plan(now, effects);
  WatchStalls(now, effects);
}

absl::Time GenerationState::NextDeadline() const {
  if (ended_) return absl::InfiniteFuture();
  if (table_.has_ready()) return absl::InfinitePast();
  return table_.NextStall(options_.stall_warning, options_.stall_abort);
}

void GenerationState::End(Effects& effects) {
  if (ended_) return;
  ended_ = true;
  table_.ForgetAll();
  NoteStallsEnded(effects);
}

std::shared_ptr<v1::CoordinatorMessage> GenerationState::NewMessage() const {
  auto message = std::make_shared<v1::CoordinatorMessage>();
  message->set_epoch(ToInt(identity_.epoch));
  message->set_generation(ToInt(identity_.generation));
  return message;
}

void GenerationState::Plan(absl::Time now, Effects& effects) {
  if (!table_.has_ready()) return;
  const std::vector<ReadyTensor> ready = table_.TakeReady();
  std::vector<FusionInput> inputs;
  inputs.reserve(ready.size());
  for (const ReadyTensor& tensor : ready) inputs.push_back({&tensor.spec, tensor.fused_bytes});
  const std::vector<std::vector<size_t>> batches =
      PlanFusion(inputs, {.max_batch_bytes = options_.max_batch_bytes});

  Event event{.kind = Event::Kind::kTensorsPlanned, .job = identity_.job};
  event.generation = ToInt(identity_.generation);
  std::shared_ptr<v1::CoordinatorMessage> message = NewMessage();
  int64_t message_bytes = 0;
  for (const std::vector<size_t>& batch : batches) {
    if (message_bytes > kPlanMessageBytes) {
      effects.outgoing.push_back(Deliver{by_rank_, std::move(message)});
      message = NewMessage();
      message_bytes = 0;
    }
    v1::FusedBatch* fused = message->mutable_plan()->add_batches();
    fused->set_sequence(++sequence_);
    for (size_t index : batch) {
      const ReadyTensor& tensor = ready[index];
      fused->add_tensors(tensor.spec.name);
      message_bytes += static_cast<int64_t>(tensor.spec.name.size());
      event.bytes += SizeBytes(tensor.spec);
      event.negotiation.push_back(now - tensor.first_report);
    }
  }
  effects.outgoing.push_back(Deliver{by_rank_, std::move(message)});
  event.batches = static_cast<int64_t>(batches.size());
  event.tensors = static_cast<int64_t>(ready.size());
  tensors_planned_ += event.tensors;
  bytes_planned_ += event.bytes;
  event.text = absl::StrCat(event.tensors, event.tensors == 1 ? " tensor in " : " tensors in ",
                            event.batches, event.batches == 1 ? " batch, " : " batches, ",
                            event.bytes, " bytes");
  effects.events.push_back(std::move(event));
  NoteStallsEnded(effects);
}

void GenerationState::WatchStalls(absl::Time now, Effects& effects) {
  int64_t count = 0;
  // One event for all that stall at once: usually one rank is late with a whole step.
  const std::vector<PendingTensor> stalled =
      table_.NewlyStalled(now, options_.stall_warning, /*limit=*/1, count);
  if (count > 0) {
    const PendingTensor& first = stalled.front();
    std::string text = absl::StrCat("tensor ", first.name,
                                    count > 1 ? absl::StrCat(" and ", count - 1, " more") : "",
                                    " waiting for ", absl::FormatDuration(now - first.since),
                                    ": in ", RanksString(first.ready, first.ready_count),
                                    ", missing ", RanksString(first.missing, first.missing_count));
    Emit(Event::Kind::kStallBegan, std::move(text), count, absl::StatusCode::kOk, effects);
    stalls_told_ += count;
  }
  std::vector<FailedTensor> failed;
  table_.FailOlderThan(now, options_.stall_abort, failed);
  DeliverFailures(failed, effects);
  NoteStallsEnded(effects);
}

void GenerationState::NoteStallsEnded(Effects& effects) {
  const int64_t ended = stalls_told_ - table_.stalled();
  if (ended == 0) return;
  stalls_told_ = table_.stalled();
  Emit(Event::Kind::kStallEnded,
       absl::StrCat(ended, ended == 1 ? " stalled tensor is" : " stalled tensors are",
                    " no longer pending, ", stalls_told_, " still stalled"),
       ended, absl::StatusCode::kOk, effects);
}

// Consecutive failures for the same ranks share a message.
void GenerationState::DeliverFailures(const std::vector<FailedTensor>& failed,
                                      Effects& effects) const {
  size_t i = 0;
  while (i < failed.size()) {
    const std::vector<Rank>& ranks = failed[i].ranks;
    std::shared_ptr<v1::CoordinatorMessage> message = NewMessage();
    int64_t bytes = 0;
    for (; i < failed.size() && failed[i].ranks == ranks && bytes < kPlanMessageBytes; ++i) {
      v1::TensorFailure* failure = message->mutable_tensor_failures()->add_failures();
      failure->set_name(failed[i].name);
      failure->set_code(static_cast<int>(failed[i].fault.status.code()));
      // Two names and two values: room for four times what any other sentence may have.
      failure->set_message(Truncated(failed[i].fault.status.message(), 4 * kMaxReasonBytes));
      failure->set_rank(ToInt(failed[i].fault.blamed));
      bytes += static_cast<int64_t>(failure->ByteSizeLong());
    }
    Deliver deliver{.to = {}, .message = std::move(message)};
    for (Rank rank : ranks) deliver.to.push_back(session_of(rank));
    effects.outgoing.push_back(std::move(deliver));
  }
  NoteFailures(failed, effects);
}

// One event for neighbours with one cause: a group, or everything that one rank withdrew.
void GenerationState::NoteFailures(const std::vector<FailedTensor>& failed,
                                   Effects& effects) const {
  for (size_t i = 0; i < failed.size();) {
    const TensorFault& fault = failed[i].fault;
    size_t end = i + 1;
    while (end < failed.size() && failed[end].fault.status.code() == fault.status.code() &&
           failed[end].fault.blamed == fault.blamed) {
      ++end;
    }
    const int64_t count = static_cast<int64_t>(end - i);
    Emit(Event::Kind::kTensorFailed,
         count == 1 ? std::string(fault.status.message())
                    : absl::StrCat(fault.status.message(), " (and ", count - 1, " more tensors)"),
         count, fault.status.code(), effects);
    i = end;
  }
}

void GenerationState::Emit(Event::Kind kind, std::string text, int64_t tensors,
                           absl::StatusCode code, Effects& effects) const {
  Event event{.kind = kind, .job = identity_.job};
  event.generation = ToInt(identity_.generation);
  event.code = code;
  event.text = OneLine(text);
  event.tensors = tensors;
  effects.events.push_back(std::move(event));
}

}  // namespace coordd
