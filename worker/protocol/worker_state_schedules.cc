// What WorkerState does with schedules: batches that are launched without asking coordd.
// docs/design/schedules.md.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/execute/worker_errors.h"
#include "worker/protocol/worker_state.h"

namespace coordd {
namespace {

constexpr size_t kNamedMissing = 3;  // tensors in a sentence
// Batches that are staged since a schedule of tensors on devices is in force, and none of it
// between them: the program does something else now.
constexpr int64_t kStagedInARow = 8;

std::string WhatIsMissing(const ScheduledLane& lane) {
  const std::vector<std::string> names = lane.Missing(kNamedMissing);
  return names.empty() ? "what came otherwise" : "tensor " + absl::StrJoin(names, ", ");
}

}  // namespace

void WorkerState::OnSchedule(const v1::Schedule& schedule, const Turn& turn) {
  if (!end_.ok() || expects_next_) return;
  const bool first = incoming_.id() == 0;
  if (!first && (incoming_.id() != schedule.id() || incoming_.lane() != schedule.lane() ||
                 incoming_.process_set() != schedule.process_set())) {
    ProtocolError(
        absl::StrCat("coordd sent schedule ", schedule.id(), " within schedule ", incoming_.id()),
        turn);
    return;
  }
  last_schedule_ = std::max(last_schedule_, schedule.id());
  incoming_.MergeFrom(schedule);
  if (!schedule.more()) BeginSchedule(turn);
}

absl::StatusOr<std::vector<std::vector<TensorSpec>>> WorkerState::SchedulePart(
    const v1::Schedule& schedule) const {
  const ProcessSetId process_set{schedule.process_set()};
  auto wrong = [&](const auto&... what) {
    return absl::InternalError(absl::StrCat("coordd sent schedule ", schedule.id(), " ", what...));
  };
  if (schedule.id() < 1 || schedules_.contains(LaneId{schedule.lane()}) ||
      schedule.lane() < kFirstScheduleLane || !process_sets_.IsMember(process_set)) {
    return wrong("of process set ", schedule.process_set(), " on lane ", schedule.lane(),
                 ", expected a set of this rank and a lane of its own");
  }
  std::set<std::string> names;
  std::vector<std::vector<TensorSpec>> batches;
  for (const v1::ScheduledBatch& batch : schedule.batches()) {
    std::vector<TensorSpec>& specs = batches.emplace_back();
    for (const v1::TensorSpec& proto : batch.tensors()) {
      COORDD_ASSIGN_OR_RETURN(TensorSpec spec, FromProto(proto));
      COORDD_RETURN_IF_ERROR(Validate(spec, options_.size));
      if (!names.insert(spec.name).second) return wrong("with tensor ", spec.name, " twice");
      if (spec.process_set != process_set) return wrong("with a tensor of another process set");
      if (!specs.empty() && !FusesWith(specs.front(), spec))
        return wrong("with ", spec.name, " and ", specs.front().name, " in one batch");
      specs.push_back(std::move(spec));
    }
    if (specs.empty()) return wrong("with a batch without a tensor");
  }
  if (batches.empty()) return wrong("without a batch");
  for (const std::vector<TensorSpec>& batch : batches) {
    if ((batch.front().memory == MemoryKind::kHost) !=
        (batches.front().front().memory == MemoryKind::kHost))
      return wrong("with tensors in host memory and tensors on devices");
  }
  return batches;
}

void WorkerState::BeginSchedule(const Turn& turn) {
  const v1::Schedule schedule = std::exchange(incoming_, v1::Schedule{});
  auto batches = SchedulePart(schedule);
  if (!batches.ok()) {
    ProtocolError(batches.status().message(), turn);
    return;
  }
  const LaneId id{schedule.lane()};
  Scheduled& added = schedules_[id];
  added.position = position_;
  added.lane = std::make_unique<ScheduledLane>(
      schedule.id(), id, ProcessSetId{schedule.process_set()}, *std::move(batches));
  ScheduledLane& lane = *added.lane;
  added.marks = std::make_unique<CycleMarks>(lane.NeedingEveryRank());
  for (size_t slot = 0; slot < lane.slots(); ++slot) {
    const TensorSpec& spec = lane.spec(slot);
    // A schedule that was cut before may have this name, and is done with it: it came after all.
    scheduled_.erase(TensorKey(spec.process_set, spec.name));
    scheduled_.emplace(TensorKey(spec.process_set, spec.name), ScheduledSlot{&lane, slot});
  }
  if (leaving_) lane.Freeze();
  v1::WorkerMessage ack;
  ack.mutable_schedule_ack()->set_id(schedule.id());
  Send(std::move(ack), turn);
  // What has been submitted in the meantime: coordd forgets that it was reported.
  std::vector<std::pair<TensorId, size_t>> submitted;
  for (const auto& [tensor_id, tensor] : pending_.tensors()) {
    const auto slot = scheduled_.find(TensorKey(tensor.spec->process_set, tensor.spec->name));
    if (slot != scheduled_.end() && slot->second.lane == &lane)
      submitted.emplace_back(tensor_id, slot->second.slot);
  }
  for (const auto& [tensor_id, slot] : submitted) {
    const auto tensor = pending_.Find(tensor_id);
    const PendingTensors::Tensor& pending = tensor->second;
    if (!pending.withdrawn.ok()) {
      pending_.Fail(tensor, pending.withdrawn, turn);
      continue;
    }
    HeldTensor held{tensor_id, {}, pending.submitted_at, pending.deadline, {}};
    held.spec = pending_.Erase(tensor);
    TakeInto(lane, slot, std::move(held), turn);
  }
  LaunchScheduled(lane, turn);
}

std::optional<WorkerState::ScheduledSlot> WorkerState::FindScheduled(const SharedSpec& spec) {
  for (auto& [id, scheduled] : schedules_)
    if (const auto slot = scheduled.lane->NextSlotOf(spec))
      return ScheduledSlot{scheduled.lane.get(), *slot};
  const auto found = scheduled_.find(TensorKey(spec->process_set, spec->name));
  if (found == scheduled_.end()) return std::nullopt;
  return found->second;
}

bool WorkerState::TakeScheduled(SubmittedTensor& tensor, const Turn& turn) {
  const TensorSpec& spec = *tensor.spec;
  const std::optional<ScheduledSlot> found = FindScheduled(tensor.spec);
  if (!found.has_value()) {
    if (spec.group.empty()) return false;
    // Part of a group that the schedule has otherwise: coordd has to see all of it.
    for (auto& [id, scheduled] : schedules_) {
      if (scheduled.lane->process_set() == spec.process_set && scheduled.lane->HasGroup(spec.group))
        BreakSchedule(*scheduled.lane,
                      absl::StrCat("tensor ", spec.name, " came as part of group ", spec.group),
                      turn);
    }
    return false;
  }
  ScheduledLane& lane = *found->lane;
  const LaneId id = lane.lane();
  const size_t slot = found->slot;
  if (!lane.Wants(slot)) return false;
  if (lane.Holds(slot)) {
    turn.out.push_back(
        FailTensor{tensor.id, ForTensor(spec.name, absl::AlreadyExistsError("pending already"))});
    return true;
  }
  TakeInto(lane, slot, HeldTensor{tensor.id, std::move(tensor.spec), turn.now, tensor.deadline, {}},
           turn);
  LaunchScheduled(lane, turn);
  RetireIfFinished(id, turn);
  return true;
}

void WorkerState::TakeInto(ScheduledLane& lane, size_t slot, HeldTensor tensor, const Turn& turn) {
  const absl::Status taken = lane.Take(slot, std::move(tensor), turn.now);
  if (taken.ok()) return;
  if (!lane.cut()) {
    BreakSchedule(lane, taken.message(), turn);
    return;
  }
  // Other ranks have launched it already.
  SendFailed(BatchKey{lane.lane(), lane.launched() + 1}, lane.spec(slot).name, taken.message(),
             Suspect{options_.rank}, turn);
  EndGeneration(GenerationEndedError(options_.generation, taken.message(), taken.code()),
                /*abort=*/true, turn);
}

void WorkerState::LaunchScheduled(ScheduledLane& lane, const Turn& turn) {
  if (!end_.ok() || expects_next_ || leaving_) return;
  // A rank that has joined has no more data: what is missing up to the cut is absent.
  const bool joined = pending_.has_joined() && lane.cut();
  while (auto batch = joined ? lane.NextWithAbsent() : lane.Next())
    LaunchScheduledBatch(lane, *std::move(batch), turn);
}

// This rank has joined, and may not have come to the cut of schedules.
void WorkerState::FillSchedules(const Turn& turn) {
  std::vector<LaneId> lanes;
  for (const auto& [id, scheduled] : schedules_) lanes.push_back(id);
  for (LaneId id : lanes) {
    LaunchScheduled(*schedules_.at(id).lane, turn);
    RetireIfFinished(id, turn);
  }
}

void WorkerState::LaunchScheduledBatch(const ScheduledLane& lane, ScheduledLane::Batch batch,
                                       const Turn& turn) {
  LaunchBatch launch;
  launch.lane = lane.lane();
  launch.sequence = batch.sequence;
  launch.process_set = lane.process_set();
  LaunchedBatch executing;
  executing.first_tensor = batch.tensors.front().spec->name;
  launch.ready_at = turn.now;
  launch.begins_cycle = lane.BeginsCycle(batch.sequence);
  executing.launched_at = turn.now;
  executing.process_set = launch.process_set;
  for (HeldTensor& tensor : batch.tensors) {
    launch.tensors.push_back(tensor.id);
    if (NeedsEverybody(*tensor.spec)) executing.proves = schedules_.at(launch.lane).position;
    if (ToInt(tensor.id) == 0) {
      TensorSpec& absent = launch.absent.emplace_back(*tensor.spec);
      if (FirstDimensionMayDiffer(absent.kind)) absent.shape[0] = 0;
      continue;
    }
    const bool in_time = tensor.withdrawn.ok();
    executing.Add(tensor.id, std::move(tensor.spec),
                  in_time ? tensor.deadline : turn.now + kWithdrawalAnswer);
    launch.negotiation.push_back(turn.now - tensor.submitted_at);
  }
  // Never fails: the lane counts as the sequencer does.
  schedules_.at(launch.lane).staged = 0;
  const BatchKey key{launch.lane, launch.sequence};
  COORDD_CHECK(launched_.Launch(key, std::move(executing)).ok());
  turn.out.push_back(std::move(launch));
}

void WorkerState::BreakSchedule(ScheduledLane& lane, absl::string_view why, const Turn& turn) {
  Scheduled& scheduled = schedules_.at(lane.lane());
  if (std::exchange(scheduled.broken, true) || lane.frozen()) return;
  scheduled.why = std::string(why);
  v1::WorkerMessage message;
  message.mutable_schedule_break()->set_id(lane.id());
  message.mutable_schedule_break()->set_reason(ShortenedText(why, kMaxReasonBytes));
  Send(std::move(message), turn);
}

ScheduledLane* WorkerState::FindSchedule(int64_t id) {
  for (auto& [lane, scheduled] : schedules_)
    if (scheduled.lane->id() == id) return scheduled.lane.get();
  return nullptr;
}

void WorkerState::OnFreeze(const v1::Freeze& freeze, const Turn& turn) {
  if (!end_.ok() || expects_next_) return;
  ScheduledLane* lane = FindSchedule(freeze.id());
  if (lane == nullptr || lane->cut()) {
    ProtocolError(absl::StrCat("coordd froze schedule ", freeze.id(), ", which is not in force"),
                  turn);
    return;
  }
  to_ = lane->process_set();
  lane->Freeze();
  schedules_.at(lane->lane()).frozen = true;
  v1::WorkerMessage message;
  message.mutable_freeze_reply()->set_id(freeze.id());
  message.mutable_freeze_reply()->set_launched(lane->launched());
  message.mutable_freeze_reply()->set_join_follows(pending_.TakeJoinBack());
  Send(std::move(message), turn);
}

bool WorkerState::JoinWaits() const {
  if (!pending_.join_is_unreported()) return false;
  return std::any_of(schedules_.begin(), schedules_.end(), [](const auto& entry) {
    return entry.second.frozen && !entry.second.lane->cut();
  });
}

void WorkerState::OnCut(const v1::Cut& cut, const Turn& turn) {
  if (!end_.ok() || expects_next_) return;
  ScheduledLane* lane = FindSchedule(cut.id());
  if (lane == nullptr || !lane->frozen() || lane->cut()) {
    ProtocolError(absl::StrCat("coordd cut schedule ", cut.id(), ", which it had not frozen"),
                  turn);
    return;
  }
  to_ = lane->process_set();
  absl::StatusOr<std::vector<HeldTensor>> behind = lane->Cut(cut.position());
  if (absl::IsInternal(behind.status())) {
    ProtocolError(behind.status().message(), turn);
    return;
  }
  if (!behind.ok()) {
    // What other ranks have launched is not what this program submits.
    SendFailed(BatchKey{lane->lane(), lane->launched() + 1}, "", behind.status().message(),
               Suspect{options_.rank}, turn);
    EndGeneration(GenerationEndedError(options_.generation, behind.status().message(),
                                       behind.status().code()),
                  /*abort=*/true, turn);
    return;
  }
  for (HeldTensor& held : *behind) {
    if (!held.withdrawn.ok()) {
      turn.out.push_back(FailTensor{held.id, held.withdrawn});
      continue;
    }
    pending_.Add(held.id, {std::move(held.spec), held.submitted_at, held.deadline, false, {}});
  }
  LaunchScheduled(*lane, turn);
  RetireIfFinished(lane->lane(), turn);
}

void WorkerState::RetireIfFinished(LaneId id, const Turn& turn) {
  const auto found = schedules_.find(id);
  if (found == schedules_.end() || !found->second.lane->cut()) return;
  const ScheduledLane& lane = *found->second.lane;
  // A rank that leaves launches nothing more; its goodbye ends the generation.
  if (!lane.finished() && !leaving_) return;
  if (lane.finished() && lane.on_devices()) SendScheduleFinished(lane.id(), turn);
  if (tracing_.lane == id) tracing_.until_cycle = 0;  // there are no more steps: coordd ends it
  absl::erase_if(scheduled_, [&](const auto& entry) { return entry.second.lane == &lane; });
  schedules_.erase(found);
  launched_.EndLane(id);
  turn.out.push_back(EndLane{id});
}

void WorkerState::NoteStaged(const Turn& turn) {
  for (auto& [id, scheduled] : schedules_) {
    ScheduledLane& lane = *scheduled.lane;
    if (!lane.on_devices() || lane.cut() || ++scheduled.staged < kStagedInARow) continue;
    BreakSchedule(lane,
                  absl::StrCat(kStagedInARow,
                               " batches of other tensors on devices came, and none of it between"),
                  turn);
  }
}

void WorkerState::SendScheduleFinished(int64_t id, const Turn& turn) {
  v1::WorkerMessage message;
  message.mutable_schedule_finished()->set_id(id);
  Send(std::move(message), turn);
}

void WorkerState::On(ProgramWaits& in, const Turn& turn) {
  for (auto& [id, scheduled] : schedules_) {
    ScheduledLane& lane = *scheduled.lane;
    if (lane.held() == 0 || turn.now - lane.waiting_since() < kBlockedSilence) continue;
    for (const HeldTensor* held : lane.AllHeld()) {
      if (held->id == in.id) return BreakForSilence(lane, turn);
    }
  }
}

void WorkerState::BreakForSilence(ScheduledLane& lane, const Turn& turn) {
  BreakSchedule(lane,
                absl::StrCat("tensor ", lane.Oldest()->spec->name, " waits for ",
                             WhatIsMissing(lane), ", which the program has not submitted"),
                turn);
}

void WorkerState::CheckSilence(Scheduled& scheduled, const Turn& turn) {
  ScheduledLane& lane = *scheduled.lane;
  if (scheduled.broken || lane.frozen() || lane.held() == 0) return;
  if (scheduled.silent_since != lane.waiting_since()) {
    scheduled.silent_since = lane.waiting_since();
    scheduled.next_question = kBlockedSilence;
  }
  const absl::Duration silence = turn.now - lane.waiting_since();
  if (silence >= kScheduleSilence) return BreakForSilence(lane, turn);
  if (silence < scheduled.next_question) return;
  scheduled.next_question = 2 * silence;
  for (const HeldTensor* held : lane.AllHeld()) question_.push_back(held->id);
}

void WorkerState::CheckSchedules(const Turn& turn) {
  question_.clear();
  if (launched_.TakeLeftBehind(turn.now)) {
    const absl::Status why =
        end_.ok() ? absl::CancelledError("this worker is shutting down") : end_;
    EndGeneration(why, /*abort=*/true, turn);
  }
  for (auto& [id, scheduled] : schedules_) {
    ScheduledLane& lane = *scheduled.lane;
    CheckSilence(scheduled, turn);
    CheckScheduleDeadlines(lane, turn);
    if (!end_.ok() || expects_next_) return;  // the schedules are gone
  }
}

void WorkerState::CheckScheduleDeadlines(ScheduledLane& lane, const Turn& turn) {
  if (lane.earliest_deadline() > turn.now) return;
  for (HeldTensor* held : lane.AllHeld()) {
    if (held->deadline > turn.now) continue;
    if (!held->withdrawn.ok() && !attached()) {
      held->deadline = turn.now + kWithdrawalAnswer;  // coordd cannot have answered
      continue;
    }
    if (!held->withdrawn.ok()) {
      EndGeneration(
          GenerationEndedError(
              options_.generation,
              absl::StrCat("tensor ", held->spec->name,
                           " was given up, and its schedule was not cut ",
                           SecondsText(kWithdrawalAnswer), " later: other ranks execute it"),
              absl::StatusCode::kUnavailable),
          /*abort=*/true, turn);
      return;
    }
    const absl::Status why = absl::DeadlineExceededError(
        absl::StrCat("its batch was not complete ", SecondsText(turn.now - held->submitted_at),
                     " after rank ", ToInt(options_.rank), " had submitted it, without ",
                     WhatIsMissing(lane), " (generation ", ToInt(options_.generation), ")"));
    held->withdrawn = ForTensor(held->spec->name, why);
    held->deadline = turn.now + kWithdrawalAnswer;
    BreakSchedule(lane, held->withdrawn.message(), turn);
  }
  lane.FindEarliestDeadline();
}

absl::Time WorkerState::NextScheduleDeadline() const {
  absl::Time next = launched_.left_behind_deadline();
  for (const auto& [id, scheduled] : schedules_) {
    const ScheduledLane& lane = *scheduled.lane;
    if (lane.held() == 0) continue;
    next = std::min(next, lane.earliest_deadline());
    if (scheduled.broken || lane.frozen()) continue;
    const bool known = scheduled.silent_since == lane.waiting_since();
    const absl::Duration question = known ? scheduled.next_question : kBlockedSilence;
    next = std::min(next, lane.waiting_since() + std::min(question, kScheduleSilence));
  }
  return next;
}

void WorkerState::NoteMark(const BatchKey& key, const LaunchedBatch& batch, absl::Time ended_at) {
  if (ToInt(key.first) < kFirstScheduleLane) return;
  const auto scheduled = schedules_.find(key.first);
  if (scheduled == schedules_.end()) return;  // it was cut
  scheduled->second.marks->Ended(key.second, ended_at - batch.launched_at);
}

}  // namespace coordd
