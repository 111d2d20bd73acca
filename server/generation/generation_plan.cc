// What a generation sends: plans of each process set, joins, failures; and the events that tell of
// them.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "server/generation/fusion_planner.h"
#include "server/generation/generation_state.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// Names per batch that carries specs: with 256 of the longest names and groups it has 400 KB.
constexpr int64_t kMaxSpecsPerBatch = 256;

std::string OfSet(ProcessSetId set) {
  return set == ProcessSetId{0} ? "" : absl::StrCat(" (process set ", ToInt(set), ")");
}

}  // namespace

std::shared_ptr<v1::CoordinatorMessage> GenerationState::NewMessage() const {
  auto message = std::make_shared<v1::CoordinatorMessage>();
  message->set_epoch(ToInt(identity_.epoch));
  message->set_generation(ToInt(identity_.generation));
  return message;
}

std::shared_ptr<v1::CoordinatorMessage> GenerationState::NewOrdered() {
  auto message = NewMessage();
  message->set_position(++position_);
  return message;
}

// Adds the tensors of one batch; the bytes that they take in the message, about. By slots if each
// has one, so that no name need be read; `unknown`: those that have none and could have one.
int64_t GenerationState::FillBatch(SetState& set, const std::vector<ReadyTensor>& ready,
                                   const std::vector<size_t>& indices,
                                   std::vector<const ReadyTensor*>& unknown,
                                   v1::FusedBatch* batch) const {
  bool with_specs = false;
  for (size_t index : indices) with_specs = with_specs || ready[index].for_joined;
  // Who has joined has submitted nothing that a slot could mean; the last one has been taken from
  // `joined` when what waited for it is planned.
  const bool has_slots =
      identity_.slots > 0 && !set.is_pair && !with_specs && join_.joined().empty();
  const size_t known_before = unknown.size();
  for (size_t index : indices) {
    if (!has_slots) break;
    if (const int64_t slot = set.slots.SlotOf(ready[index]); slot != 0) {
      batch->add_slots(slot);
    } else {
      unknown.push_back(&ready[index]);
    }
  }
  constexpr int64_t kSlotBytes = 3;  // the usual
  if (has_slots && unknown.size() == known_before) return kSlotBytes * batch->slots_size();
  batch->clear_slots();
  int64_t bytes = 0;
  for (size_t index : indices) {
    const TensorSpec& spec = ready[index].spec;
    batch->add_tensors(spec.name);
    bytes += static_cast<int64_t>(spec.name.size());
    if (!with_specs) continue;
    ToProto(spec, batch->add_specs());
    bytes += static_cast<int64_t>(batch->specs(batch->specs_size() - 1).ByteSizeLong());
  }
  return bytes;
}

// With slots for the tensors that it names. Not before: its own batches are read without them.
void GenerationState::SendPlan(SetState& set, const std::vector<const ReadyTensor*>& unknown,
                               std::shared_ptr<v1::CoordinatorMessage> message, Effects& effects) {
  int64_t bytes = 0;
  for (const ReadyTensor* tensor : unknown) {
    bytes += static_cast<int64_t>(tensor->spec.name.size());
    // The others get theirs when they are planned next.
    const int64_t slot = bytes <= kPlanMessageBytes ? set.slots.Give(*tensor) : 0;
    if (slot == 0) break;
    v1::SlotBinding* binding = message->mutable_plan()->add_bindings();
    binding->set_process_set(ToInt(set.id));
    binding->set_slot(slot);
    binding->set_name(tensor->spec.name);
  }
  effects.outgoing.push_back(Deliver{set.sessions, std::move(message)});
}

void GenerationState::Plan(const Turn& turn) {
  TouchTouched();
  const std::set<ProcessSetId> ready = std::move(ready_);
  ready_.clear();
  for (ProcessSetId id : ready) PlanSet(*states_.at(id), turn);
  NoteStallsEnded(turn.effects);
}

void GenerationState::PlanSet(SetState& set, const Turn& turn) {
  ready_.erase(set.id);
  if (!set.table.has_ready()) return;
  AnnouncePair(set, turn.effects);
  std::vector<ReadyTensor> ready = set.table.TakeReady();
  std::vector<FusionInput> inputs;
  inputs.reserve(ready.size());
  FusionOptions fusion{.max_batch_bytes = options_.max_batch_bytes};
  for (const ReadyTensor& tensor : ready) {
    inputs.push_back({&tensor.spec, tensor.fused_bytes});
    if (tensor.for_joined) fusion.max_batch_tensors = kMaxSpecsPerBatch;
  }
  const std::vector<std::vector<size_t>> batches = PlanFusion(inputs, fusion);
  Observe(set, ready, batches);

  Event event{.kind = Event::Kind::kTensorsPlanned, .job = identity_.job};
  event.generation = ToInt(identity_.generation);
  std::shared_ptr<v1::CoordinatorMessage> message = NewOrdered();
  int64_t message_bytes = 0;
  int64_t most_staged = 0;  // bytes of a batch
  std::vector<const ReadyTensor*> unknown;
  for (const std::vector<size_t>& batch : batches) {
    if (message_bytes > kPlanMessageBytes) {
      SendPlan(set, unknown, std::move(message), turn.effects);
      message = NewOrdered();
      message_bytes = 0;
      unknown.clear();
    }
    v1::FusedBatch* fused = message->mutable_plan()->add_batches();
    fused->set_sequence(++set.sequence);
    fused->set_lane(ToInt(set.id));
    fused->set_process_set(ToInt(set.id));
    if (ready[batch.front()].spec.memory != MemoryKind::kHost && device_order_.busy()) {
      fused->set_staged(true);
      int64_t bytes = 0;
      for (size_t index : batch) bytes += ready[index].fused_bytes;
      most_staged = std::max(most_staged, bytes);
    }
    message_bytes += FillBatch(set, ready, batch, unknown, fused);
  }
  SendPlan(set, unknown, std::move(message), turn.effects);
  for (const ReadyTensor& tensor : ready) {
    event.bytes += SizeBytes(tensor.spec);
    event.negotiation.push_back(turn.now - tensor.first_report);
  }
  event.batches = static_cast<int64_t>(batches.size());
  event.tensors = static_cast<int64_t>(ready.size());
  event.reported_by_spec = std::exchange(reported_by_spec_, 0);
  event.reported_by_slot = std::exchange(reported_by_slot_, 0);
  event.slots_forgotten = set.slots.forgotten() - set.slots_forgotten;
  set.slots_forgotten = set.slots.forgotten();
  batches_planned_ += event.batches;
  tensors_planned_ += event.tensors;
  bytes_planned_ += event.bytes;
  event.text = absl::StrCat(event.tensors, event.tensors == 1 ? " tensor in " : " tensors in ",
                            event.batches, event.batches == 1 ? " batch, " : " batches, ",
                            event.bytes, " bytes", OfSet(set.id));
  turn.effects.events.push_back(std::move(event));
  set.table.Reuse(std::move(ready));
  BreakDeviceSchedule(most_staged, turn.effects);
  MaybeSchedule(set, turn.effects);
}

void GenerationState::PlanJoin(Rank last, Effects& effects) {
  std::shared_ptr<v1::CoordinatorMessage> message = NewOrdered();
  v1::FusedBatch* batch = message->mutable_plan()->add_batches();
  batch->set_sequence(++states_.at(ProcessSetId{0})->sequence);
  batch->add_tensors(kJoinName);
  batch->set_last_joined_rank(ToInt(last));
  effects.outgoing.push_back(Deliver{by_rank_, std::move(message)});
  ++batches_planned_;
}

void GenerationState::AnnouncePair(SetState& set, Effects& effects) {
  if (!set.is_pair || std::exchange(set.announced, true)) return;
  v1::ProcessSetChange change;
  change.set_process_set(ToInt(set.id));
  for (Rank rank : set.table.members().Ranks()) change.add_ranks(ToInt(rank));
  DeliverChange(change, set.sessions, effects);
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
      failure->set_process_set(ToInt(failed[i].process_set));
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
           failed[end].fault.blamed == fault.blamed &&
           failed[end].process_set == failed[i].process_set) {
      ++end;
    }
    const int64_t count = static_cast<int64_t>(end - i);
    Emit(Event::Kind::kTensorFailed,
         absl::StrCat(fault.status.message(),
                      count == 1 ? "" : absl::StrCat(" (and ", count - 1, " more tensors)"),
                      absl::StrContains(fault.status.message(), "process set")
                          ? ""
                          : OfSet(failed[i].process_set)),
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
