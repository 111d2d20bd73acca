#include "worker/protocol/plan_reader.h"

#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/one_line.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/tensor_spec.h"
#include "worker/protocol/tensor_traits.h"

namespace coordd {

PendingTensors::iterator FindMeant(PendingTensors& pending, const ProcessSetState& sets,
                                   ProcessSetId process_set, absl::string_view name) {
  const auto found = pending.Find(process_set, name);
  // Sends and receives are submitted to set 0 and executed in a set of the two ranks.
  if (found != pending.end() || !sets.IsForPair(process_set)) return found;
  const auto submitted = pending.Find(ProcessSetId{}, name);
  if (submitted == pending.end()) return submitted;
  const TensorSpec& spec = *submitted->second.spec;
  const bool meant = IsPairwise(spec.kind) && sets.Contains(process_set, spec.peer_rank);
  return meant ? submitted : pending.end();
}

absl::Status PlanReader::Read(const v1::CollectivePlan& plan) {
  for (const v1::FusedBatch& batch : plan.batches()) {
    LaunchedBatch executing;
    const absl::Status status = PlanBatch(batch, executing);
    if (status.ok()) continue;
    generation_.launched.AwaitVerdict(std::move(executing.tensors));
    return status;
  }
  return plan.bindings().empty() ? absl::OkStatus() : LearnSlots(plan);
}

absl::Status PlanReader::PlanBatch(const v1::FusedBatch& batch, LaunchedBatch& executing) {
  LaunchBatch launch;
  launch.lane = LaneId{batch.lane()};
  launch.sequence = batch.sequence();
  launch.process_set = ProcessSetId{batch.process_set()};
  launch.last_joined_rank = batch.last_joined_rank();
  launch.staged = batch.staged();
  if (batch.lane() != batch.process_set() ||
      !generation_.process_sets.IsMember(launch.process_set)) {
    return absl::InternalError(absl::StrCat(
        "coordd planned batch ", batch.sequence(), " of process set ", batch.process_set(),
        " on lane ", batch.lane(), ", expected a set of this rank on the lane of its number"));
  }
  COORDD_ASSIGN_OR_RETURN(const std::vector<absl::string_view> names, NamesOf(batch));
  launch.ready_at = context_.turn.now;
  executing.first_tensor = std::string(names.front());
  executing.process_set = launch.process_set;
  std::optional<TensorSpec> first;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto found =
        FindMeant(context_.pending, generation_.process_sets, launch.process_set, names[i]);
    std::optional<TensorSpec> absent;
    if (found == context_.pending.end() || !found->second.reported) {
      COORDD_ASSIGN_OR_RETURN(absent, AbsentSpec(batch, static_cast<int>(i), names[i]));
    }
    const TensorSpec& spec = absent.has_value() ? *absent : *found->second.spec;
    if (first.has_value() && !FusesWith(*first, spec)) {
      return absl::InternalError(absl::StrCat(
          "coordd planned tensor ", spec.name, " (", ToString(spec), ") in one batch with ",
          first->name, " (", ToString(*first), "), with which it cannot travel"));
    }
    if (!first.has_value()) first = spec;
    if (NeedsEverybody(spec)) executing.proves = generation_.heard.position();
    if (absent.has_value()) {
      launch.tensors.push_back(TensorId{});
      launch.absent.push_back(*std::move(absent));
    } else {
      PlanTensor(found, executing, launch);
    }
  }
  const BatchKey key{launch.lane, launch.sequence};
  COORDD_RETURN_IF_ERROR(generation_.launched.Launch(key, std::move(executing)));
  const bool staged = launch.staged;
  context_.turn.out.push_back(std::move(launch));
  if (staged) generation_.schedules.NoteStaged(context_);
  return absl::OkStatus();
}

void PlanReader::PlanTensor(PendingTensors::iterator found, LaunchedBatch& executing,
                            LaunchBatch& launch) {
  const PendingTensors::Tensor& pending = found->second;
  const TensorId id = found->first;
  launch.tensors.push_back(id);
  launch.negotiation.push_back(context_.turn.now - pending.submitted_at);
  // A withdrawn tensor's own deadline has passed; it gets as long again as coordd's answer took.
  const absl::Time deadline =
      pending.withdrawn.ok() ? pending.deadline : context_.turn.now + kWithdrawalAnswer;
  executing.Add(id, context_.pending.Erase(found), deadline);
}

absl::StatusOr<std::vector<absl::string_view>> PlanReader::NamesOf(const v1::FusedBatch& batch) {
  std::vector<absl::string_view> names(batch.tensors().begin(), batch.tensors().end());
  for (int64_t slot : batch.slots()) {
    const std::string* name = generation_.slots.NameOf(ProcessSetId{batch.process_set()}, slot);
    if (name == nullptr || !batch.tensors().empty()) {
      return absl::InternalError(absl::StrCat("coordd planned slot ", slot, " in batch ",
                                              batch.sequence(),
                                              ", which it has not given or has given up"));
    }
    names.push_back(*name);
  }
  if (!names.empty()) return names;
  return absl::InternalError(
      absl::StrCat("coordd planned batch ", batch.sequence(), " without a tensor"));
}

// A slot stands for what this rank has submitted; coordd gives none to what it has not.
absl::Status PlanReader::LearnSlots(const v1::CollectivePlan& plan) {
  absl::flat_hash_map<TensorKey, SharedSpec> planned;
  for (const v1::FusedBatch& batch : plan.batches()) {
    const LaunchedBatch* launched =
        generation_.launched.Find({LaneId{batch.lane()}, batch.sequence()});
    if (launched == nullptr) continue;
    for (const auto& [id, spec] : launched->tensors)
      planned.emplace(TensorKey(spec->process_set, spec->name), spec);
  }
  for (const v1::SlotBinding& binding : plan.bindings()) {
    const auto spec = planned.find(TensorKey(ProcessSetId{binding.process_set()}, binding.name()));
    if (spec != planned.end() && generation_.slots.Learn(binding.slot(), spec->second)) continue;
    return absl::InternalError(absl::StrCat(
        "coordd gave slot ", binding.slot(), " to tensor ",
        ShortenedText(binding.name(), kMaxTensorNameBytes),
        ", expected the next slot, and a tensor that this rank has submitted and it has planned"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorSpec> PlanReader::AbsentSpec(const v1::FusedBatch& batch, int index,
                                                  absl::string_view name) const {
  if (!context_.pending.has_joined() || batch.specs_size() != batch.tensors_size()) {
    return absl::InternalError(
        absl::StrCat("coordd planned tensor ", ShortenedText(name, kMaxTensorNameBytes),
                     " in batch ", batch.sequence(), ", which this rank has not submitted"));
  }
  absl::StatusOr<TensorSpec> spec = FromProto(batch.specs(index));
  absl::Status valid = spec.ok() ? Validate(*spec, size_) : spec.status();
  if (valid.ok() && spec->name != name) {
    valid =
        absl::InternalError(absl::StrCat("the spec of ", spec->name, " stands for tensor ", name));
  }
  if (valid.ok() && !generation_.process_sets.HasRootOf(*spec, ProcessSetId{batch.process_set()})) {
    valid = absl::InternalError(
        absl::StrCat("the root of ", name, ", rank ", spec->root_rank, ", is not in the set"));
  }
  if (!valid.ok()) {
    return absl::InternalError(
        absl::StrCat("coordd planned batch ", batch.sequence(),
                     " with a spec that is none: ", OneLine(valid.message())));
  }
  // Another rank's extent of the first dimension; this one has no rows to give.
  if (FirstDimensionMayDiffer(spec->kind)) spec->shape[0] = 0;
  return spec;
}

}  // namespace coordd
