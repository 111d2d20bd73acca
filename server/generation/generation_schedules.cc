// Schedules of a generation: how one begins, how it is broken and cut, and what has to wait for
// that. docs/design/schedules.md.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "server/generation/generation_state.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// Of a batch of tensors on devices: a metric, which may well be staged.
constexpr int64_t kSmallBesideSchedule = int64_t{64} << 10;

LaneId LaneOfSchedule(int64_t id) {
  return LaneId{kFirstScheduleLane + static_cast<int32_t>(id - 1)};
}

std::string Title(int64_t id, ProcessSetId set) {
  return absl::StrCat("schedule ", id,
                      set == ProcessSetId{0} ? "" : absl::StrCat(" of process set ", ToInt(set)));
}

}  // namespace

void GenerationState::Observe(SetState& set, const std::vector<ReadyTensor>& ready,
                              const std::vector<std::vector<size_t>>& batches) {
  if (!schedules_wanted()) return;
  for (const std::vector<size_t>& batch : batches) {
    const bool on_devices = ready[batch.front()].spec.memory != MemoryKind::kHost;
    std::vector<const TensorSpec*> specs;
    int64_t bytes = 0;
    for (size_t index : batch) {
      // While a rank has no data, the others will soon do something else.
      if (ready[index].for_joined) {
        set.detector.Reset();
        set.device_detector.Reset();
        return;
      }
      specs.push_back(&ready[index].spec);
      bytes += ready[index].fused_bytes;
    }
    if (on_devices) NoteOnDevices(set.id, bytes);
    if (set.is_pair || (on_devices && !identity_.device_schedules)) continue;
    (on_devices ? set.device_detector : set.detector).Planned(specs);
  }
}

// Beside a schedule of tensors on devices what is planned of such tensors is staged: there is one
// where all that comes often, or is large, is of one set.
void GenerationState::NoteOnDevices(ProcessSetId set, int64_t bytes) {
  if (bytes <= kSmallBesideSchedule || last_on_devices_ == set) return;
  const auto before = states_.find(std::exchange(last_on_devices_, set));
  if (before != states_.end()) before->second->device_detector.Reset();
}

// What came beside it was planned to be staged, which is correct, and slow.
void GenerationState::BreakDeviceSchedule(int64_t bytes_beside, Effects& effects) {
  if (bytes_beside <= kSmallBesideSchedule || device_order_.schedule() == 0) return;
  Freeze(schedules_.Break(device_order_.schedule()),
         absl::StrCat(bytes_beside, " bytes on devices came beside it"), effects);
}

void GenerationState::MaybeSchedule(SetState& set, Effects& effects) {
  MaybeSchedule(set, set.detector, effects);
  if (device_order_.busy()) {
    set.device_detector.Reset();  // what is staged now is not the pattern
  } else {
    MaybeSchedule(set, set.device_detector, effects);
  }
}

// Behind the plan that completes the pattern, and only if no rank has gone on: what is pending
// would be on both sides.
void GenerationState::MaybeSchedule(SetState& set, ScheduleDetector& detector, Effects& effects) {
  if (!detector.complete() || !schedules_.HasRoom() || !deferred_.empty() ||
      !join_.joined().empty() || set.table.tombstones() > 0) {
    return;
  }
  ScheduleBatches pattern = detector.Pattern();
  int64_t tensors = 0;
  for (const auto& batch : pattern) {
    for (const TensorSpec& spec : batch) {
      // In force: ranks report what they should launch, or it has been on a device and is no more.
      if (set.table.Has(spec.name) || schedules_.InForce(set.id, spec.name)) return;
    }
    tensors += static_cast<int64_t>(batch.size());
  }
  detector.Reset();
  if (pattern.empty()) return;
  const ScheduleTable::Schedule& schedule =
      schedules_.Begin(set.id, set.table.members(), std::move(pattern));
  if (OnDevices(schedule.batches)) device_order_.Begin(schedule.id, set.table.members());
  DeliverSchedule(schedule, set.sessions, effects);
  Emit(Event::Kind::kScheduleBegan,
       absl::StrCat(Title(schedule.id, set.id), ": ranks execute ", tensors,
                    tensors == 1 ? " tensor in " : " tensors in ", schedule.batches.size(),
                    schedule.batches.size() == 1 ? " batch" : " batches",
                    " without asking from now on"),
       tensors, absl::StatusCode::kOk, effects);
}

void GenerationState::DeliverSchedule(const ScheduleTable::Schedule& schedule,
                                      const std::vector<SessionId>& to, Effects& effects) {
  std::shared_ptr<v1::CoordinatorMessage> message;
  int64_t bytes = 0;
  for (const std::vector<TensorSpec>& batch : schedule.batches) {
    if (message == nullptr || bytes > kPlanMessageBytes) {
      if (message != nullptr) {
        message->mutable_schedule()->set_more(true);
        effects.outgoing.push_back(Deliver{to, std::move(message)});
      }
      message = NewOrdered();
      message->mutable_schedule()->set_id(schedule.id);
      message->mutable_schedule()->set_lane(ToInt(schedule.lane));
      message->mutable_schedule()->set_process_set(ToInt(schedule.process_set));
      bytes = 0;
    }
    v1::ScheduledBatch* scheduled = message->mutable_schedule()->add_batches();
    for (const TensorSpec& spec : batch) ToProto(spec, scheduled->add_tensors());
    bytes += static_cast<int64_t>(scheduled->ByteSizeLong());
  }
  effects.outgoing.push_back(Deliver{to, std::move(message)});
}

absl::Status GenerationState::OnScheduleAck(Rank rank, const v1::ScheduleAck& ack) {
  return ended_ ? absl::OkStatus() : schedules_.Acknowledge(rank, ack.id());
}

absl::Status GenerationState::OnScheduleBreak(Rank rank, const v1::ScheduleBreak& message,
                                              Effects& effects) {
  if (ended_) return absl::OkStatus();
  COORDD_RETURN_IF_ERROR(schedules_.CheckBreak(rank, message.id()));
  Freeze(schedules_.Break(message.id()), absl::StrCat("rank ", ToInt(rank), ": ", message.reason()),
         effects);
  return absl::OkStatus();
}

void GenerationState::Freeze(const std::vector<const ScheduleTable::Schedule*>& schedules,
                             absl::string_view why, Effects& effects) {
  for (const ScheduleTable::Schedule* schedule : schedules) {
    std::shared_ptr<v1::CoordinatorMessage> message = NewOrdered();
    message->mutable_freeze()->set_id(schedule->id);
    effects.outgoing.push_back(
        Deliver{states_.at(schedule->process_set)->sessions, std::move(message)});
    Emit(Event::Kind::kScheduleBroken,
         absl::StrCat(Title(schedule->id, schedule->process_set), " ends: ", why), 0,
         absl::StatusCode::kOk, effects);
  }
}

absl::Status GenerationState::OnFreezeReply(Rank rank, const v1::FreezeReply& reply,
                                            const Turn& turn) {
  if (ended_) return absl::OkStatus();
  COORDD_ASSIGN_OR_RETURN(const std::optional<ScheduleCut> cut,
                          schedules_.Reply(rank, reply.id(), reply.launched()));
  if (reply.join_follows() && !ForgetDeferredJoin(rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a join taken back with the reply to the freeze of schedule ", reply.id(),
                     ", which had not been said"));
  }
  if (!cut.has_value()) return absl::OkStatus();
  SetState& set = *states_.at(cut->process_set);
  (cut->on_devices ? set.device_detector : set.detector).Ended(cut->was_of_use);
  std::shared_ptr<v1::CoordinatorMessage> message = NewOrdered();
  message->mutable_cut()->set_id(cut->id);
  message->mutable_cut()->set_position(cut->position);
  turn.effects.outgoing.push_back(Deliver{set.sessions, std::move(message)});
  RunDeferred(turn);
  return absl::OkStatus();
}

absl::Status GenerationState::OnScheduleFinished(Rank rank, const v1::ScheduleFinished& finished) {
  if (ended_) return absl::OkStatus();
  const int64_t id = finished.id();
  const bool possible = id >= 0 && id <= kMaxSchedules;
  if (!possible || (id > 0 && schedules_.InForce(LaneOfSchedule(id)))) {
    return absl::InvalidArgumentError(
        absl::StrCat("an end of schedule ", id, ", which has not been cut"));
  }
  device_order_.Finished(rank, id);
  return absl::OkStatus();
}

// --- joins and changes of process sets wait until the schedules that they concern are cut -------

bool GenerationState::MustWait(const Deferred& what) const {
  return what.agreed.has_value() ? schedules_.InForce(what.agreed->proposal.remove)
                                 : schedules_.InForce(what.rank);
}

// Whether it waits. What comes behind something that waits waits too: answers keep their order.
bool GenerationState::Defer(Deferred what, Effects& effects) {
  if (deferred_.empty() && !MustWait(what)) return false;
  if (what.agreed.has_value()) {
    Freeze(schedules_.BreakSet(what.agreed->proposal.remove), "its process set is removed",
           effects);
  } else {
    Freeze(schedules_.BreakRank(what.rank),
           absl::StrCat("rank ", ToInt(what.rank), " has no more data"), effects);
  }
  deferred_.push_back(std::move(what));
  return true;
}

void GenerationState::RunDeferred(const Turn& turn) {
  while (!deferred_.empty() && !MustWait(deferred_.front())) {
    const Deferred next = std::move(deferred_.front());
    deferred_.pop_front();
    if (next.agreed.has_value()) {
      Answer(*next.agreed, turn);
      continue;
    }
    std::vector<FailedTensor> failed;
    Join(next.rank, turn, failed);
    DeliverFailures(failed, turn.effects);
    TouchTouched();
    NoteStallsEnded(turn.effects);
  }
}

bool GenerationState::ForgetDeferredJoin(Rank rank) {
  const auto found = std::find_if(deferred_.begin(), deferred_.end(), [rank](const Deferred& one) {
    return !one.agreed.has_value() && one.rank == rank;
  });
  if (found == deferred_.end()) return false;
  deferred_.erase(found);
  return true;
}

bool GenerationState::WithdrawDeferredJoin(Rank rank, absl::string_view reason,
                                           std::vector<FailedTensor>& failed) {
  if (!ForgetDeferredJoin(rank)) return false;
  const absl::Status why = absl::CancelledError(
      absl::StrCat("tensor ", kJoinName, ": withdrawn by rank ", ToInt(rank), ": ", reason));
  failed.push_back({ProcessSetId{0}, kJoinName, {why, rank}, {rank}});
  return true;
}

// --- who is behind ------------------------------------------------------------------------------

void GenerationState::OnHeartbeat(Rank rank, const v1::Heartbeat& heartbeat, const Turn& turn) {
  if (ended_ || schedules_.empty()) return;
  std::map<LaneId, int64_t> launched;
  for (const v1::LanePosition& lane : heartbeat.lanes()) {
    if (lane.lane() >= kFirstScheduleLane && lane.launched() >= 0)
      launched[LaneId{lane.lane()}] = lane.launched();
  }
  NoteLateness(rank, heartbeat);
  schedules_.Heartbeat(rank, launched, turn.now);
  NoteStallsEnded(turn.effects);
}

// Weighs as much as if each of the collectives had been negotiated (ReadinessTotals).
void GenerationState::NoteLateness(Rank rank, const v1::Heartbeat& heartbeat) {
  for (const v1::LanePosition& lane : heartbeat.lanes()) {
    for (const v1::LaneMark& mark : lane.marks()) {
      const MemberList* members = nullptr;
      const auto window = schedules_.Told(rank, LaneId{lane.lane()}, mark, members);
      if (!window.has_value()) continue;
      const int64_t weight = std::min(window->collectives, ReadinessTotals::kLagDivisor);
      for (size_t i = 0; i < window->lag.size(); ++i) {
        const Rank member = members->At(static_cast<int32_t>(i));
        absl::Duration& lag = totals_.lag[static_cast<size_t>(ToInt(member))];
        lag += (window->lag[i] - lag) * weight / ReadinessTotals::kLagDivisor;
      }
    }
  }
}

void GenerationState::WatchSchedules(const Turn& turn) {
  for (const PendingTensor& tensor : schedules_.NewlyStalled(turn.now, options_.stall_warning)) {
    EmitStall(tensor, 1, turn);
    ++stalls_told_;
  }
}

std::optional<std::string> GenerationState::Hopeless(absl::Time now) const {
  if (ended_) return std::nullopt;
  const std::vector<PendingTensor> stalled = schedules_.Stalled(now, options_.stall_abort);
  if (stalled.empty()) return std::nullopt;
  const PendingTensor& tensor = stalled.front();
  return absl::StrCat("tensor ", tensor.name, " was not executed by ",
                      RanksString(tensor.missing, tensor.missing_count), " for ",
                      DurationText(now - tensor.since), ", but by ",
                      RanksString(tensor.ready, tensor.ready_count),
                      tensor.missing.empty() ? "" : At(tensor.missing.front()));
}

}  // namespace coordd
