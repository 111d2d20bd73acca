// What WorkerState makes of coordd's plans and schedules, of tensors that failed and of process
// sets that changed.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "worker/execute/worker_errors.h"
#include "worker/protocol/tensor_traits.h"
#include "worker/protocol/worker_state.h"

namespace coordd {
absl::Status WorkerState::PlanBatch(const v1::FusedBatch& batch, LaunchedBatch& executing,
                                    const WorkerTurn& turn) {
  LaunchBatch launch;
  launch.lane = LaneId{batch.lane()};
  launch.sequence = batch.sequence();
  launch.process_set = ProcessSetId{batch.process_set()};
  launch.last_joined_rank = batch.last_joined_rank();
  launch.staged = batch.staged();
  if (batch.lane() != batch.process_set() || !process_sets_.IsMember(launch.process_set)) {
    return absl::InternalError(absl::StrCat(
        "coordd planned batch ", batch.sequence(), " of process set ", batch.process_set(),
        " on lane ", batch.lane(), ", expected a set of this rank on the lane of its number"));
  }
  COORDD_ASSIGN_OR_RETURN(const std::vector<absl::string_view> names, NamesOf(batch));
  launch.ready_at = turn.now;
  executing.first_tensor = std::string(names.front());
  executing.process_set = launch.process_set;
  std::optional<TensorSpec> first;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto found = FindPending(launch.process_set, names[i]);
    std::optional<TensorSpec> absent;
    if (found == pending_.end() || !found->second.reported) {
      COORDD_ASSIGN_OR_RETURN(absent, AbsentSpec(batch, static_cast<int>(i), names[i]));
    }
    const TensorSpec& spec = absent.has_value() ? *absent : *found->second.spec;
    if (first.has_value() && !FusesWith(*first, spec)) {
      return absl::InternalError(absl::StrCat(
          "coordd planned tensor ", spec.name, " (", ToString(spec), ") in one batch with ",
          first->name, " (", ToString(*first), "), with which it cannot travel"));
    }
    if (!first.has_value()) first = spec;
    if (NeedsEverybody(spec)) executing.proves = position_;
    if (absent.has_value()) {
      launch.tensors.push_back(TensorId{});
      launch.absent.push_back(*std::move(absent));
    } else {
      PlanTensor(found, executing, launch, turn);
    }
  }
  const BatchKey key{launch.lane, launch.sequence};
  COORDD_RETURN_IF_ERROR(launched_.Launch(key, std::move(executing)));
  const bool staged = launch.staged;
  turn.out.push_back(std::move(launch));
  if (staged) schedules_.NoteStaged(ForSchedules(turn));
  return absl::OkStatus();
}

void WorkerState::PlanTensor(PendingTensors::iterator found, LaunchedBatch& executing,
                             LaunchBatch& launch, const WorkerTurn& turn) {
  const PendingTensors::Tensor& pending = found->second;
  const TensorId id = found->first;
  launch.tensors.push_back(id);
  launch.negotiation.push_back(turn.now - pending.submitted_at);
  // A withdrawn tensor's own deadline has passed; it gets as long again as coordd's answer took.
  const absl::Time deadline =
      pending.withdrawn.ok() ? pending.deadline : turn.now + kWithdrawalAnswer;
  executing.Add(id, pending_.Erase(found), deadline);
}

absl::StatusOr<std::vector<absl::string_view>> WorkerState::NamesOf(const v1::FusedBatch& batch) {
  std::vector<absl::string_view> names(batch.tensors().begin(), batch.tensors().end());
  for (int64_t slot : batch.slots()) {
    const std::string* name = slots_.NameOf(ProcessSetId{batch.process_set()}, slot);
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
absl::Status WorkerState::LearnSlots(const v1::CollectivePlan& plan) {
  absl::flat_hash_map<TensorKey, SharedSpec> planned;
  for (const v1::FusedBatch& batch : plan.batches()) {
    const LaunchedBatch* launched = launched_.Find({LaneId{batch.lane()}, batch.sequence()});
    if (launched == nullptr) continue;
    for (const auto& [id, spec] : launched->tensors)
      planned.emplace(TensorKey(spec->process_set, spec->name), spec);
  }
  for (const v1::SlotBinding& binding : plan.bindings()) {
    const auto spec = planned.find(TensorKey(ProcessSetId{binding.process_set()}, binding.name()));
    if (spec != planned.end() && slots_.Learn(binding.slot(), spec->second)) continue;
    return absl::InternalError(absl::StrCat(
        "coordd gave slot ", binding.slot(), " to tensor ", binding.name(),
        ", expected the next slot, and a tensor that this rank has submitted and it has planned"));
  }
  return absl::OkStatus();
}

PendingTensors::iterator WorkerState::FindPending(ProcessSetId process_set,
                                                  absl::string_view name) {
  const auto found = pending_.Find(process_set, name);
  // Sends and receives are submitted to set 0 and executed in a set of the two ranks.
  if (found != pending_.end() || !process_sets_.IsForPair(process_set)) return found;
  const auto submitted = pending_.Find(ProcessSetId{}, name);
  if (submitted == pending_.end()) return submitted;
  const TensorSpec& spec = *submitted->second.spec;
  const bool meant = IsPairwise(spec.kind) && process_sets_.Contains(process_set, spec.peer_rank);
  return meant ? submitted : pending_.end();
}

absl::StatusOr<TensorSpec> WorkerState::AbsentSpec(const v1::FusedBatch& batch, int index,
                                                   absl::string_view name) const {
  if (!pending_.has_joined() || batch.specs_size() != batch.tensors_size()) {
    return absl::InternalError(absl::StrCat("coordd planned tensor ", name, " in batch ",
                                            batch.sequence(),
                                            ", which this rank has not submitted"));
  }
  absl::StatusOr<TensorSpec> spec = FromProto(batch.specs(index));
  absl::Status valid = spec.ok() ? Validate(*spec, options_.size) : spec.status();
  if (valid.ok() && spec->name != name) {
    valid =
        absl::InternalError(absl::StrCat("the spec of ", spec->name, " stands for tensor ", name));
  }
  if (valid.ok() && !process_sets_.HasRootOf(*spec, ProcessSetId{batch.process_set()})) {
    valid = absl::InternalError(
        absl::StrCat("the root of ", name, ", rank ", spec->root_rank, ", is not in the set"));
  }
  if (!valid.ok()) {
    return absl::InternalError(absl::StrCat("coordd planned batch ", batch.sequence(),
                                            " with a spec that is none: ", valid.message()));
  }
  // Another rank's extent of the first dimension; this one has no rows to give.
  if (FirstDimensionMayDiffer(spec->kind)) spec->shape[0] = 0;
  return spec;
}

void WorkerState::OnFailures(const v1::TensorFailures& failures, const WorkerTurn& turn) {
  if (expects_next_) return;  // it is reported again
  for (const v1::TensorFailure& failure : failures.failures()) {
    const auto found = FindPending(ProcessSetId{failure.process_set()}, failure.name());
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
  if (!end_.ok() || expects_next_) return;  // nobody will use it
  const std::optional<v1::ProcessSetChange> before =
      process_sets_.Announced(ProcessSetId{change.process_set()});
  const absl::Status applied = process_sets_.OnChange(change, turn.out);
  if (!applied.ok()) {
    ProtocolError(applied.message(), turn);
    return;
  }
  last_process_set_ = std::max(last_process_set_, change.process_set());
  if (change.code() == 0 && change.request() != 0) sets_position_ = position_;
  if (change.code() != 0 || !change.ranks().empty()) return;
  const ProcessSetId ended{change.process_set()};
  if (!before.has_value()) {
    log_.DropKept(ended);
    return;
  }
  log_.NoteEnded(*before);
  const absl::Status why = absl::FailedPreconditionError(
      absl::StrCat("process set ", ToInt(ended), " has been removed"));
  pending_.FailThose([ended](const TensorSpec& spec) { return spec.process_set == ended; }, why,
                     turn);
  launched_.EndLane(LaneId{ToInt(ended)});
  slots_.Forget(ended);
  if (const absl::Status status = schedules_.OnSetEnded(ended); !status.ok())
    ProtocolError(status.message(), turn);
}

// Whether the join is not reported before a cut: behind that there may be what came before it.
bool WorkerState::JoinWaits() const {
  return pending_.join_is_unreported() && schedules_.AwaitsCut();
}

void WorkerState::OnSchedule(const v1::Schedule& schedule, const WorkerTurn& turn) {
  if (!end_.ok() || expects_next_) return;
  const absl::Status status =
      schedules_.OnSchedule(schedule, process_sets_, options_.size, position_, ForSchedules(turn));
  if (!status.ok()) ProtocolError(status.message(), turn);
}

void WorkerState::OnFreeze(const v1::Freeze& freeze, const WorkerTurn& turn) {
  if (!end_.ok() || expects_next_) return;
  to_ = schedules_.SetOf(freeze.id());
  const absl::Status status = schedules_.OnFreeze(freeze, ForSchedules(turn));
  if (!status.ok()) ProtocolError(status.message(), turn);
}

void WorkerState::OnCut(const v1::Cut& cut, const WorkerTurn& turn) {
  if (!end_.ok() || expects_next_) return;
  to_ = schedules_.SetOf(cut.id());
  const auto fault = schedules_.OnCut(cut, ForSchedules(turn));
  if (fault.has_value()) EndForFault(*fault, turn);
}

// Other ranks execute what this one cannot, unless coordd contradicts itself.
void WorkerState::EndForFault(const ScheduledWork::Fault& fault, const WorkerTurn& turn) {
  if (absl::IsInternal(fault.why)) return ProtocolError(fault.why.message(), turn);
  SendFailed(fault.batch, fault.tensor, fault.why.message(), Suspect{options_.rank}, turn);
  EndGeneration(GenerationEndedError(options_.generation, fault.why.message(), fault.why.code()),
                /*abort=*/true, turn);
}

void WorkerState::On(ProgramWaits& in, const WorkerTurn& turn) {
  schedules_.OnProgramWaits(in.id, ForSchedules(turn));
}

void WorkerState::CheckSchedules(const WorkerTurn& turn) {
  schedules_.ClearQuestion();
  if (launched_.TakeLeftBehind(turn.now)) {
    const absl::Status why =
        end_.ok() ? absl::CancelledError("this worker is shutting down") : end_;
    EndGeneration(why, /*abort=*/true, turn);
  }
  const absl::Status status = schedules_.Tick(ForSchedules(turn));
  if (status.ok()) return;
  EndGeneration(GenerationEndedError(options_.generation, status.message(), status.code()),
                /*abort=*/true, turn);
}

absl::Time WorkerState::NextScheduleDeadline() const {
  return std::min(launched_.left_behind_deadline(), schedules_.NextDeadline());
}

}  // namespace coordd
