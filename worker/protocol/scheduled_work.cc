#include "worker/protocol/scheduled_work.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/execute/worker_errors.h"
#include "worker/protocol/tensor_traits.h"

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

absl::Status ScheduledWork::OnSchedule(const v1::Schedule& schedule, const ProcessSetState& sets,
                                       int32_t size, int64_t position, const Context& context) {
  const bool first = incoming_.id() == 0;
  if (!first && (incoming_.id() != schedule.id() || incoming_.lane() != schedule.lane() ||
                 incoming_.process_set() != schedule.process_set())) {
    return absl::InternalError(
        absl::StrCat("coordd sent schedule ", schedule.id(), " within schedule ", incoming_.id()));
  }
  if (first && (schedule.id() <= last_id_ || schedule.id() > kMaxSchedules)) {
    return absl::InternalError(absl::StrCat("coordd sent schedule ", schedule.id(),
                                            ", expected a number from ", last_id_ + 1, " to ",
                                            kMaxSchedules));
  }
  last_id_ = std::max(last_id_, schedule.id());
  incoming_.MergeFrom(schedule);
  if (incoming_.ByteSizeLong() > kMaxScheduleBytes) {
    incoming_.Clear();
    return absl::InternalError(absl::StrCat("coordd sent schedule ", schedule.id(),
                                            " of more than ", kMaxScheduleBytes >> 20, " MiB"));
  }
  return schedule.more() ? absl::OkStatus() : Begin(sets, size, position, context);
}

absl::StatusOr<std::vector<std::vector<TensorSpec>>> ScheduledWork::BatchesOf(
    const v1::Schedule& schedule, const ProcessSetState& sets, int32_t size) const {
  const ProcessSetId process_set{schedule.process_set()};
  auto wrong = [&](const auto&... what) {
    return absl::InternalError(absl::StrCat("coordd sent schedule ", schedule.id(), " ", what...));
  };
  // Numbers grow, so this is a lane that no other schedule has had.
  if (schedule.lane() != kFirstScheduleLane + schedule.id() - 1 || !sets.IsMember(process_set)) {
    return wrong("of process set ", schedule.process_set(), " on lane ", schedule.lane(),
                 ", expected a set of this rank and a lane of its own");
  }
  std::set<std::string> names;
  std::vector<std::vector<TensorSpec>> batches;
  for (const v1::ScheduledBatch& batch : schedule.batches()) {
    std::vector<TensorSpec>& specs = batches.emplace_back();
    for (const v1::TensorSpec& proto : batch.tensors()) {
      COORDD_ASSIGN_OR_RETURN(TensorSpec spec, FromProto(proto));
      COORDD_RETURN_IF_ERROR(Validate(spec, size));
      if (!names.insert(spec.name).second) return wrong("with tensor ", spec.name, " twice");
      if (spec.process_set != process_set) return wrong("with a tensor of another process set");
      if (!sets.HasRootOf(spec, process_set))
        return wrong("with a root of ", spec.name, " that is not in its process set");
      const auto other = slots_.find(TensorKey(process_set, spec.name));
      if (other != slots_.end() && other->second.lane->Wants(other->second.slot))
        return wrong("with tensor ", spec.name, " of schedule ", other->second.lane->id());
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

absl::Status ScheduledWork::Begin(const ProcessSetState& sets, int32_t size, int64_t position,
                                  const Context& context) {
  const v1::Schedule schedule = std::exchange(incoming_, v1::Schedule{});
  COORDD_ASSIGN_OR_RETURN(auto batches, BatchesOf(schedule, sets, size));
  const LaneId id{schedule.lane()};
  Scheduled& added = lanes_[id];
  added.position = position;
  added.lane = std::make_unique<ScheduledLane>(
      schedule.id(), id, ProcessSetId{schedule.process_set()}, std::move(batches));
  ScheduledLane& lane = *added.lane;
  added.marks = std::make_unique<CycleMarks>(lane.NeedingEveryRank());
  for (size_t slot = 0; slot < lane.slots(); ++slot) {
    const TensorSpec& spec = lane.spec(slot);
    // A schedule that was cut before may have this name, and is done with it: it came after all.
    slots_.erase(TensorKey(spec.process_set, spec.name));
    slots_.emplace(TensorKey(spec.process_set, spec.name), Slot{&lane, slot});
  }
  if (context.leaving) lane.Freeze();
  v1::WorkerMessage ack;
  ack.mutable_schedule_ack()->set_id(schedule.id());
  context.session.Send(std::move(ack), context.turn);
  // What has been submitted in the meantime: coordd forgets that it was reported.
  std::vector<std::pair<TensorId, size_t>> submitted;
  for (const auto& [tensor_id, tensor] : context.pending.tensors()) {
    const auto slot = slots_.find(TensorKey(tensor.spec->process_set, tensor.spec->name));
    if (slot != slots_.end() && slot->second.lane == &lane)
      submitted.emplace_back(tensor_id, slot->second.slot);
  }
  for (const auto& [tensor_id, slot] : submitted) {
    const auto tensor = context.pending.Find(tensor_id);
    const PendingTensors::Tensor& pending = tensor->second;
    if (!pending.withdrawn.ok()) {
      context.pending.Fail(tensor, pending.withdrawn, context.turn);
      continue;
    }
    HeldTensor held{tensor_id, {}, pending.submitted_at, pending.deadline, {}};
    held.spec = context.pending.Erase(tensor);
    // It cannot be cut yet: what is not as the schedule says breaks it.
    TakeInto(lane, slot, std::move(held), context);
  }
  Launch(lane, context);
  return absl::OkStatus();
}

std::optional<ScheduledWork::Slot> ScheduledWork::FindSlot(const SharedSpec& spec) {
  for (auto& [id, scheduled] : lanes_)
    if (const auto slot = scheduled.lane->NextSlotOf(spec))
      return Slot{scheduled.lane.get(), *slot};
  const auto found = slots_.find(TensorKey(spec->process_set, spec->name));
  if (found == slots_.end()) return std::nullopt;
  return found->second;
}

bool ScheduledWork::Take(SubmittedTensor& tensor, const Context& context,
                         std::optional<Fault>& fault) {
  const TensorSpec& spec = *tensor.spec;
  const std::optional<Slot> found = FindSlot(tensor.spec);
  if (!found.has_value()) {
    if (spec.group.empty()) return false;
    // Part of a group that the schedule has otherwise: coordd has to see all of it.
    for (auto& [id, scheduled] : lanes_) {
      if (scheduled.lane->process_set() == spec.process_set && scheduled.lane->HasGroup(spec.group))
        Break(*scheduled.lane,
              absl::StrCat("tensor ", spec.name, " came as part of group ", spec.group), context);
    }
    return false;
  }
  ScheduledLane& lane = *found->lane;
  const LaneId id = lane.lane();
  const size_t slot = found->slot;
  if (!lane.Wants(slot)) return false;
  if (lane.Holds(slot)) {
    context.turn.out.push_back(
        FailTensor{tensor.id, ForTensor(spec.name, absl::AlreadyExistsError("pending already"))});
    return true;
  }
  fault =
      TakeInto(lane, slot,
               HeldTensor{tensor.id, std::move(tensor.spec), context.turn.now, tensor.deadline, {}},
               context);
  if (fault.has_value()) return true;
  Launch(lane, context);
  RetireIfFinished(id, context);
  return true;
}

std::optional<ScheduledWork::Fault> ScheduledWork::TakeInto(ScheduledLane& lane, size_t slot,
                                                            HeldTensor tensor,
                                                            const Context& context) {
  absl::Status taken = lane.Take(slot, std::move(tensor), context.turn.now);
  if (taken.ok()) return std::nullopt;
  if (!lane.cut()) {
    Break(lane, taken.message(), context);
    return std::nullopt;
  }
  // Other ranks have launched it already.
  return Fault{std::move(taken), {lane.lane(), lane.launched() + 1}, lane.spec(slot).name};
}

void ScheduledWork::Launch(ScheduledLane& lane, const Context& context) {
  if (context.leaving || lanes_.at(lane.lane()).set_has_ended) return;
  // A rank that has joined has no more data: what is missing up to the cut is absent.
  const bool joined = context.pending.has_joined() && lane.cut();
  while (auto batch = joined ? lane.NextWithAbsent() : lane.Next())
    LaunchBatchOf(lane, *std::move(batch), context);
}

// This rank has joined, and may not have come to the cut of schedules.
void ScheduledWork::Fill(const Context& context) {
  std::vector<LaneId> lanes;
  for (const auto& [id, scheduled] : lanes_) lanes.push_back(id);
  for (LaneId id : lanes) {
    Launch(*lanes_.at(id).lane, context);
    RetireIfFinished(id, context);
  }
}

void ScheduledWork::LaunchBatchOf(const ScheduledLane& lane, ScheduledLane::Batch batch,
                                  const Context& context) {
  LaunchBatch launch;
  launch.lane = lane.lane();
  launch.sequence = batch.sequence;
  launch.process_set = lane.process_set();
  LaunchedBatch executing;
  executing.first_tensor = batch.tensors.front().spec->name;
  launch.ready_at = context.turn.now;
  launch.begins_cycle = lane.BeginsCycle(batch.sequence);
  executing.launched_at = context.turn.now;
  executing.process_set = launch.process_set;
  for (HeldTensor& tensor : batch.tensors) {
    launch.tensors.push_back(tensor.id);
    if (NeedsEverybody(*tensor.spec)) executing.proves = lanes_.at(launch.lane).position;
    if (ToInt(tensor.id) == 0) {
      TensorSpec& absent = launch.absent.emplace_back(*tensor.spec);
      if (FirstDimensionMayDiffer(absent.kind)) absent.shape[0] = 0;
      continue;
    }
    const bool in_time = tensor.withdrawn.ok();
    executing.Add(tensor.id, std::move(tensor.spec),
                  in_time ? tensor.deadline : context.turn.now + kWithdrawalAnswer);
    launch.negotiation.push_back(context.turn.now - tensor.submitted_at);
  }
  // Never fails: the lane counts as the sequencer does.
  lanes_.at(launch.lane).staged = 0;
  const BatchKey key{launch.lane, launch.sequence};
  COORDD_CHECK(context.launched.Launch(key, std::move(executing)).ok());
  context.turn.out.push_back(std::move(launch));
}

void ScheduledWork::Break(ScheduledLane& lane, absl::string_view why, const Context& context) {
  Scheduled& scheduled = lanes_.at(lane.lane());
  if (std::exchange(scheduled.broken, true) || lane.frozen()) return;
  scheduled.why = std::string(why);
  v1::WorkerMessage message;
  message.mutable_schedule_break()->set_id(lane.id());
  message.mutable_schedule_break()->set_reason(ShortenedText(why, kMaxReasonBytes));
  context.session.Send(std::move(message), context.turn);
}

ScheduledLane* ScheduledWork::FindLane(int64_t id) {
  for (auto& [lane, scheduled] : lanes_)
    if (scheduled.lane->id() == id) return scheduled.lane.get();
  return nullptr;
}

absl::Status ScheduledWork::OnFreeze(const v1::Freeze& freeze, const Context& context) {
  ScheduledLane* lane = FindLane(freeze.id());
  if (lane == nullptr || lane->cut()) {
    return absl::InternalError(
        absl::StrCat("coordd froze schedule ", freeze.id(), ", which is not in force"));
  }
  lane->Freeze();
  lanes_.at(lane->lane()).frozen = true;
  v1::WorkerMessage message;
  message.mutable_freeze_reply()->set_id(freeze.id());
  message.mutable_freeze_reply()->set_launched(lane->launched());
  message.mutable_freeze_reply()->set_join_follows(context.pending.TakeJoinBack());
  context.session.Send(std::move(message), context.turn);
  return absl::OkStatus();
}

std::optional<ScheduledWork::Fault> ScheduledWork::OnCut(const v1::Cut& cut,
                                                         const Context& context) {
  ScheduledLane* lane = FindLane(cut.id());
  if (lane == nullptr || !lane->frozen() || lane->cut()) {
    return Fault{absl::InternalError(
                     absl::StrCat("coordd cut schedule ", cut.id(), ", which it had not frozen")),
                 {},
                 ""};
  }
  absl::StatusOr<std::vector<HeldTensor>> behind = lane->Cut(cut.position());
  // What other ranks have launched is not what this program submits.
  if (!behind.ok()) return Fault{behind.status(), {lane->lane(), lane->launched() + 1}, ""};
  for (HeldTensor& held : *behind) {
    if (!held.withdrawn.ok()) {
      context.turn.out.push_back(FailTensor{held.id, held.withdrawn});
      continue;
    }
    context.pending.Add(held.id,
                        {std::move(held.spec), held.submitted_at, held.deadline, false, {}});
  }
  Launch(*lane, context);
  RetireIfFinished(lane->lane(), context);
  return std::nullopt;
}

absl::Status ScheduledWork::OnSetEnded(ProcessSetId ended) {
  for (auto& [id, scheduled] : lanes_) {
    if (scheduled.lane->process_set() != ended) continue;
    if (!scheduled.lane->cut()) {
      return absl::InternalError(absl::StrCat("coordd ended process set ", ToInt(ended),
                                              ", whose schedule ", scheduled.lane->id(),
                                              " it had not cut"));
    }
    scheduled.set_has_ended = true;
  }
  return absl::OkStatus();
}

void ScheduledWork::RetireIfFinished(LaneId id, const Context& context) {
  const auto found = lanes_.find(id);
  if (found == lanes_.end() || !found->second.lane->cut()) return;
  const ScheduledLane& lane = *found->second.lane;
  // A rank that leaves launches nothing more; its goodbye ends the generation.
  if (!lane.finished() && !context.leaving) return;
  if (lane.finished() && lane.on_devices()) SendFinished(lane.id(), context);
  absl::erase_if(slots_, [&](const auto& entry) { return entry.second.lane == &lane; });
  lanes_.erase(found);
  context.launched.EndLane(id);
  context.turn.out.push_back(EndLane{id});
}

void ScheduledWork::NoteStaged(const Context& context) {
  for (auto& [id, scheduled] : lanes_) {
    ScheduledLane& lane = *scheduled.lane;
    if (!lane.on_devices() || lane.cut() || ++scheduled.staged < kStagedInARow) continue;
    Break(lane,
          absl::StrCat(kStagedInARow,
                       " batches of other tensors on devices came, and none of it between"),
          context);
  }
}

void ScheduledWork::SendFinished(int64_t id, const Context& context) const {
  v1::WorkerMessage message;
  message.mutable_schedule_finished()->set_id(id);
  context.session.Send(std::move(message), context.turn);
}

void ScheduledWork::BreakForSilence(ScheduledLane& lane, const Context& context) {
  Break(lane,
        absl::StrCat("tensor ", lane.Oldest()->spec->name, " waits for ", WhatIsMissing(lane),
                     ", which the program has not submitted"),
        context);
}

void ScheduledWork::CheckSilence(Scheduled& scheduled, const Context& context) {
  ScheduledLane& lane = *scheduled.lane;
  if (scheduled.broken || lane.frozen() || lane.held() == 0) return;
  if (scheduled.silent_since != lane.waiting_since()) {
    scheduled.silent_since = lane.waiting_since();
    scheduled.next_question = kBlockedSilence;
  }
  const absl::Duration silence = context.turn.now - lane.waiting_since();
  if (silence >= kScheduleSilence) return BreakForSilence(lane, context);
  if (silence < scheduled.next_question) return;
  scheduled.next_question = 2 * silence;
  for (const HeldTensor* held : lane.AllHeld()) question_.push_back(held->id);
}

absl::Status ScheduledWork::CheckDeadlines(ScheduledLane& lane, const Context& context) {
  if (lane.earliest_deadline() > context.turn.now) return absl::OkStatus();
  const CoordinatorSession::Terms& terms = context.session.terms();
  for (HeldTensor* held : lane.AllHeld()) {
    if (held->deadline > context.turn.now) continue;
    if (!held->withdrawn.ok() && !context.session.attached()) {
      held->deadline = context.turn.now + kWithdrawalAnswer;  // coordd cannot have answered
      continue;
    }
    if (!held->withdrawn.ok()) {
      return absl::UnavailableError(
          absl::StrCat("tensor ", held->spec->name, " was given up, and its schedule was not cut ",
                       SecondsText(kWithdrawalAnswer), " later: other ranks execute it"));
    }
    const absl::Status why = absl::DeadlineExceededError(absl::StrCat(
        "its batch was not complete ", SecondsText(context.turn.now - held->submitted_at),
        " after rank ", ToInt(terms.pace.rank), " had submitted it, without ", WhatIsMissing(lane),
        " (generation ", ToInt(terms.generation), ")"));
    held->withdrawn = ForTensor(held->spec->name, why);
    held->deadline = context.turn.now + kWithdrawalAnswer;
    Break(lane, held->withdrawn.message(), context);
  }
  lane.FindEarliestDeadline();
  return absl::OkStatus();
}

void ScheduledWork::NoteMark(BatchKey key, const LaunchedBatch& batch, absl::Time ended_at) {
  if (ToInt(key.first) < kFirstScheduleLane) return;
  const auto scheduled = lanes_.find(key.first);
  if (scheduled == lanes_.end()) return;  // it was cut
  scheduled->second.marks->Ended(key.second, ended_at - batch.launched_at);
}

const ScheduledWork::Scheduled* ScheduledWork::Find(LaneId lane) const {
  const auto found = lanes_.find(lane);
  return found == lanes_.end() ? nullptr : &found->second;
}

ProcessSetId ScheduledWork::SetOf(int64_t id) const {
  for (const auto& [lane, scheduled] : lanes_)
    if (scheduled.lane->id() == id) return scheduled.lane->process_set();
  return ProcessSetId{};
}

void ScheduledWork::OnProgramWaits(TensorId id, const Context& context) {
  for (auto& [lane_id, scheduled] : lanes_) {
    ScheduledLane& lane = *scheduled.lane;
    if (lane.held() == 0 || context.turn.now - lane.waiting_since() < kBlockedSilence) continue;
    for (const HeldTensor* held : lane.AllHeld()) {
      if (held->id == id) return BreakForSilence(lane, context);
    }
  }
}

absl::Status ScheduledWork::Tick(const Context& context) {
  for (auto& [id, scheduled] : lanes_) {
    CheckSilence(scheduled, context);
    COORDD_RETURN_IF_ERROR(CheckDeadlines(*scheduled.lane, context));
  }
  return absl::OkStatus();
}

absl::Time ScheduledWork::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, scheduled] : lanes_) {
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

void ScheduledWork::Leave(const absl::Status& why, const WorkerTurn& turn) {
  for (auto& [id, scheduled] : lanes_) {
    scheduled.lane->Freeze();
    for (const HeldTensor& held : scheduled.lane->TakeAllHeld())
      turn.out.push_back(FailTensor{held.id, ForTensor(held.spec->name, why)});
  }
}

void ScheduledWork::FailAll(const absl::Status& why, const WorkerTurn& turn) {
  Leave(why, turn);
  slots_.clear();
  lanes_.clear();
}

void ScheduledWork::MoveTo(PendingTensors& pending) {
  for (auto& [id, scheduled] : lanes_) {
    for (HeldTensor& held : scheduled.lane->TakeAllHeld()) {
      pending.Add(held.id, {std::move(held.spec), held.submitted_at, held.deadline, false,
                            std::move(held.withdrawn)});
    }
  }
  slots_.clear();
  lanes_.clear();
}

void ScheduledWork::ReportAnew(const Context& context) const {
  for (const auto& [id, scheduled] : lanes_) {
    const ScheduledLane& lane = *scheduled.lane;
    v1::WorkerMessage message;
    if (scheduled.frozen && !lane.cut()) {
      message.mutable_freeze_reply()->set_id(lane.id());
      message.mutable_freeze_reply()->set_launched(lane.launched());
    } else if (scheduled.broken && !scheduled.frozen) {
      message.mutable_schedule_break()->set_id(lane.id());
      message.mutable_schedule_break()->set_reason(ShortenedText(scheduled.why, kMaxReasonBytes));
    } else {
      continue;
    }
    context.session.Send(std::move(message), context.turn);
  }
}

int64_t ScheduledWork::held() const {
  int64_t held = 0;
  for (const auto& [id, scheduled] : lanes_) held += scheduled.lane->held();
  return held;
}

bool ScheduledWork::AwaitsCut() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& entry) {
    return entry.second.frozen && !entry.second.lane->cut();
  });
}

bool ScheduledWork::HasDeviceLane() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const auto& entry) { return entry.second.lane->on_devices(); });
}

}  // namespace coordd
