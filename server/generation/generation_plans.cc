#include "server/generation/generation_plans.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/protocol/protocol_bounds.h"
#include "server/generation/fusion_planner.h"

namespace coordd {
namespace {

// Names per batch that carries specs: with 256 of the longest names and groups it has 400 KB.
constexpr int64_t kMaxSpecsPerBatch = 256;

}  // namespace

void GenerationPlans::PlanReady(const Turn& turn) {
  sets_.Settle();
  for (ProcessSetId id : sets_.TakeReady()) Plan(sets_.At(id), turn);
}

void GenerationPlans::Plan(SetNegotiation& set, const Turn& turn) {
  sets_.TakeReady(set.id());
  if (!set.table().has_ready()) return;
  AnnouncePair(set, turn.effects);
  std::vector<ReadyTensor> ready = set.table().TakeReady();
  std::vector<FusionInput> inputs;
  inputs.reserve(ready.size());
  FusionOptions fusion{.max_batch_bytes = max_batch_bytes_};
  for (const ReadyTensor& tensor : ready) {
    inputs.push_back({&tensor.spec, tensor.fused_bytes});
    if (tensor.for_joined) fusion.max_batch_tensors = kMaxSpecsPerBatch;
  }
  const std::vector<std::vector<size_t>> batches = PlanFusion(inputs, fusion);
  schedules_.Observe(set, ready, batches);

  Draft draft{.message = messages_.NewOrdered()};
  for (const std::vector<size_t>& batch : batches) {
    if (draft.bytes > kPlanMessageBytes) {
      Send(set, draft, turn.effects);
      draft = {.message = messages_.NewOrdered(), .most_staged = draft.most_staged};
    }
    Add(set, ready, batch, draft);
  }
  Send(set, draft, turn.effects);
  Note(set, ready, batches.size(), turn);
  set.table().Reuse(std::move(ready));
  schedules_.Planned(set, draft.most_staged, turn.effects);
}

void GenerationPlans::Add(SetNegotiation& set, const std::vector<ReadyTensor>& ready,
                          const std::vector<size_t>& batch, Draft& draft) {
  v1::FusedBatch* fused = draft.message->mutable_plan()->add_batches();
  fused->set_sequence(set.NextSequence());
  fused->set_lane(ToInt(set.id()));
  fused->set_process_set(ToInt(set.id()));
  if (ready[batch.front()].spec.memory != MemoryKind::kHost && schedules_.devices_are_busy()) {
    fused->set_staged(true);
    int64_t bytes = 0;
    for (size_t index : batch) bytes += ready[index].fused_bytes;
    draft.most_staged = std::max(draft.most_staged, bytes);
  }
  // Who has joined has submitted nothing that a slot could mean; the last one has been taken from
  // those who have when what waited for it is planned.
  const bool by_slots = sets_.join().joined().empty();
  draft.bytes += set.FillBatch(ready, batch, by_slots, draft.unknown, fused);
}

// With slots for the tensors that it names. Not before: its own batches are read without them.
void GenerationPlans::Send(SetNegotiation& set, Draft& draft, Effects& effects) {
  set.Bind(draft.unknown, draft.message->mutable_plan());
  effects.outgoing.push_back(Deliver{set.sessions(), std::move(draft.message)});
}

void GenerationPlans::Note(SetNegotiation& set, const std::vector<ReadyTensor>& ready,
                           size_t batches, const Turn& turn) {
  const GenerationIdentity& identity = messages_.identity();
  Event event{.kind = Event::Kind::kTensorsPlanned, .job = identity.job};
  event.generation = ToInt(identity.generation);
  for (const ReadyTensor& tensor : ready) {
    event.bytes += SizeBytes(tensor.spec);
    event.negotiation.push_back(turn.now - tensor.first_report);
  }
  event.batches = static_cast<int64_t>(batches);
  event.tensors = static_cast<int64_t>(ready.size());
  event.reported_by_spec = std::exchange(reported_by_spec_, 0);
  event.reported_by_slot = std::exchange(reported_by_slot_, 0);
  event.slots_forgotten = set.TakeForgotten();
  batches_ += event.batches;
  tensors_ += event.tensors;
  bytes_ += event.bytes;
  event.text = absl::StrCat(Counted(event.tensors, "tensor"), " in ",
                            Counted(event.batches, "batch", "batches"), ", ",
                            Counted(event.bytes, "byte"), OfSet(set.id()));
  turn.effects.events.push_back(std::move(event));
}

void GenerationPlans::PlanJoin(Rank last, Effects& effects) {
  std::shared_ptr<v1::CoordinatorMessage> message = messages_.NewOrdered();
  v1::FusedBatch* batch = message->mutable_plan()->add_batches();
  batch->set_sequence(sets_.OfAllRanks().NextSequence());
  batch->add_tensors(kJoinName);
  batch->set_last_joined_rank(ToInt(last));
  effects.outgoing.push_back(Deliver{messages_.by_rank(), std::move(message)});
  ++batches_;
}

void GenerationPlans::AnnouncePair(SetNegotiation& set, Effects& effects) {
  if (!set.TakeAnnouncement()) return;
  v1::ProcessSetChange change;
  change.set_process_set(ToInt(set.id()));
  for (Rank rank : set.members().Ranks()) change.add_ranks(ToInt(rank));
  messages_.DeliverChange(change, set.sessions(), effects);
}

}  // namespace coordd
