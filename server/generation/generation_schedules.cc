#include "server/generation/generation_schedules.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"

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

void GenerationSchedules::Observe(SetNegotiation& set, const std::vector<ReadyTensor>& ready,
                                  const std::vector<std::vector<size_t>>& batches) {
  if (!wanted_) return;
  for (const std::vector<size_t>& batch : batches) {
    const bool on_devices = ready[batch.front()].spec.memory != MemoryKind::kHost;
    std::vector<const TensorSpec*> specs;
    int64_t bytes = 0;
    for (size_t index : batch) {
      // While a rank has no data, the others will soon do something else.
      if (ready[index].for_joined) {
        set.ResetDetectors();
        return;
      }
      specs.push_back(&ready[index].spec);
      bytes += ready[index].fused_bytes;
    }
    if (on_devices) NoteOnDevices(set.id(), bytes);
    if (set.is_pair() || (on_devices && !messages_.identity().device_schedules)) continue;
    set.detector(on_devices).Planned(specs);
  }
}

// Beside a schedule of tensors on devices what is planned of such tensors is staged: there is one
// where all that comes often, or is large, is of one set.
void GenerationSchedules::NoteOnDevices(ProcessSetId set, int64_t bytes) {
  if (bytes <= kSmallBesideSchedule || last_on_devices_ == set) return;
  SetNegotiation* const before = sets_.Find(std::exchange(last_on_devices_, set));
  if (before != nullptr) before->detector(/*on_devices=*/true).Reset();
}

// What came beside a schedule was planned to be staged, which is correct, and slow.
void GenerationSchedules::Planned(SetNegotiation& set, int64_t most_staged, Effects& effects) {
  if (most_staged > kSmallBesideSchedule && devices_.schedule() != 0) {
    Freeze(table_.Break(devices_.schedule()),
           absl::StrCat(most_staged, " bytes on devices came beside it"), effects);
  }
  MaybeBegin(set, set.detector(/*on_devices=*/false), effects);
  ScheduleDetector& on_devices = set.detector(/*on_devices=*/true);
  if (devices_.busy()) {
    on_devices.Reset();  // what is staged now is not the pattern
  } else {
    MaybeBegin(set, on_devices, effects);
  }
}

// Only if no rank has gone on: what is pending would be on both sides.
void GenerationSchedules::MaybeBegin(SetNegotiation& set, ScheduleDetector& detector,
                                     Effects& effects) {
  if (detector.missed() && !detector.complete() && set.table().pending() == 0) detector.Recut();
  if (!detector.complete() || !table_.HasRoom() || !deferred_.empty() ||
      !sets_.join().joined().empty() || set.table().tombstones() > 0) {
    return;
  }
  ScheduleBatches pattern = detector.Pattern();
  int64_t tensors = 0;
  for (const auto& batch : pattern) {
    for (const TensorSpec& spec : batch) {
      // In force: ranks report what they should launch, or it has been on a device and is no more.
      if (set.table().Has(spec.name) || table_.InForce(set.id(), spec.name)) return;
    }
    tensors += static_cast<int64_t>(batch.size());
  }
  detector.Reset();
  if (pattern.empty() || !sets_.kept().HasRoomFor(ScheduleTable::CostOf(pattern))) return;
  const ScheduleTable::Schedule& schedule =
      table_.Begin(set.id(), set.members(), std::move(pattern));
  if (OnDevices(schedule.batches)) devices_.Begin(schedule.id, set.members());
  Announce(schedule, set.sessions(), effects);
  messages_.Emit(
      Event::Kind::kScheduleBegan,
      absl::StrCat(Title(schedule.id, set.id()), ": ranks execute ", tensors,
                   tensors == 1 ? " tensor in " : " tensors in ", schedule.batches.size(),
                   schedule.batches.size() == 1 ? " batch" : " batches",
                   " without asking from now on"),
      effects, tensors);
}

void GenerationSchedules::Announce(const ScheduleTable::Schedule& schedule,
                                   const std::vector<SessionId>& to, Effects& effects) {
  std::shared_ptr<v1::CoordinatorMessage> message;
  int64_t bytes = 0;
  for (const std::vector<TensorSpec>& batch : schedule.batches) {
    if (message == nullptr || bytes > kPlanMessageBytes) {
      if (message != nullptr) {
        message->mutable_schedule()->set_more(true);
        effects.outgoing.push_back(Deliver{to, std::move(message)});
      }
      message = messages_.NewOrdered();
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

absl::Status GenerationSchedules::OnBreak(Rank rank, const v1::ScheduleBreak& message,
                                          Effects& effects) {
  COORDD_RETURN_IF_ERROR(table_.CheckBreak(rank, message.id()));
  Freeze(table_.Break(message.id()), absl::StrCat("rank ", ToInt(rank), ": ", message.reason()),
         effects);
  return absl::OkStatus();
}

void GenerationSchedules::Freeze(const std::vector<const ScheduleTable::Schedule*>& schedules,
                                 absl::string_view why, Effects& effects) {
  for (const ScheduleTable::Schedule* schedule : schedules) {
    std::shared_ptr<v1::CoordinatorMessage> message = messages_.NewOrdered();
    message->mutable_freeze()->set_id(schedule->id);
    effects.outgoing.push_back(
        Deliver{sets_.At(schedule->process_set).sessions(), std::move(message)});
    messages_.Emit(Event::Kind::kScheduleBroken,
                   absl::StrCat(Title(schedule->id, schedule->process_set), " ends: ", why),
                   effects);
  }
}

absl::StatusOr<bool> GenerationSchedules::OnFreezeReply(Rank rank, const v1::FreezeReply& reply,
                                                        Effects& effects) {
  COORDD_ASSIGN_OR_RETURN(const std::optional<ScheduleCut> cut,
                          table_.Reply(rank, reply.id(), reply.launched()));
  if (reply.join_follows() && !ForgetJoin(rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a join taken back with the reply to the freeze of schedule ", reply.id(),
                     ", which had not been said"));
  }
  if (!cut.has_value()) return false;
  SetNegotiation& set = sets_.At(cut->process_set);
  set.detector(cut->on_devices).Ended(cut->was_of_use);
  std::shared_ptr<v1::CoordinatorMessage> message = messages_.NewOrdered();
  message->mutable_cut()->set_id(cut->id);
  message->mutable_cut()->set_position(cut->position);
  effects.outgoing.push_back(Deliver{set.sessions(), std::move(message)});
  return true;
}

absl::Status GenerationSchedules::OnFinished(Rank rank, const v1::ScheduleFinished& finished) {
  const int64_t id = finished.id();
  const bool possible = id >= 0 && id <= kMaxSchedules;
  if (!possible || (id > 0 && table_.InForce(LaneOfSchedule(id)))) {
    return absl::InvalidArgumentError(
        absl::StrCat("an end of schedule ", id, ", which has not been cut"));
  }
  devices_.Finished(rank, id);
  return absl::OkStatus();
}

// --- joins and changes of process sets wait until the schedules that they concern are cut -------

bool GenerationSchedules::MustWait(const Deferred& what) const {
  return what.agreed.has_value() ? table_.InForce(what.agreed->proposal.remove)
                                 : table_.InForce(what.rank);
}

bool GenerationSchedules::Defer(Deferred what, Effects& effects) {
  if (deferred_.empty() && !MustWait(what)) return false;
  if (what.agreed.has_value()) {
    Freeze(table_.BreakSet(what.agreed->proposal.remove), "its process set is removed", effects);
  } else {
    Freeze(table_.BreakRank(what.rank),
           absl::StrCat("rank ", ToInt(what.rank), " has no more data"), effects);
  }
  deferred_.push_back(std::move(what));
  return true;
}

std::optional<GenerationSchedules::Deferred> GenerationSchedules::TakeDue() {
  if (deferred_.empty() || MustWait(deferred_.front())) return std::nullopt;
  Deferred due = std::move(deferred_.front());
  deferred_.pop_front();
  return due;
}

bool GenerationSchedules::ForgetJoin(Rank rank) {
  const auto found = std::find_if(deferred_.begin(), deferred_.end(), [rank](const Deferred& one) {
    return !one.agreed.has_value() && one.rank == rank;
  });
  if (found == deferred_.end()) return false;
  deferred_.erase(found);
  return true;
}

bool GenerationSchedules::WithdrawJoin(Rank rank, absl::string_view reason,
                                       std::vector<FailedTensor>& failed) {
  if (!ForgetJoin(rank)) return false;
  const absl::Status why = absl::CancelledError(
      absl::StrCat("tensor ", kJoinName, ": withdrawn by rank ", ToInt(rank), ": ", reason));
  failed.push_back({ProcessSetId{0}, kJoinName, {why, rank}, {rank}});
  return true;
}

// --- who is behind ------------------------------------------------------------------------------

void GenerationSchedules::OnHeartbeat(Rank rank, const v1::Heartbeat& heartbeat, absl::Time now) {
  std::map<LaneId, int64_t> launched;
  for (const v1::LanePosition& lane : heartbeat.lanes()) {
    if (lane.lane() >= kFirstScheduleLane && lane.launched() >= 0)
      launched[LaneId{lane.lane()}] = lane.launched();
  }
  NoteLateness(rank, heartbeat);
  table_.Heartbeat(rank, launched, now);
}

// Weighs as much as if each of the collectives had been negotiated (ReadinessTotals).
void GenerationSchedules::NoteLateness(Rank rank, const v1::Heartbeat& heartbeat) {
  for (const v1::LanePosition& lane : heartbeat.lanes()) {
    for (const v1::LaneMark& mark : lane.marks()) {
      const MemberList* members = nullptr;
      const auto window = table_.Told(rank, LaneId{lane.lane()}, mark, members);
      if (!window.has_value()) continue;
      const int64_t weight = std::min(window->collectives, ReadinessTotals::kLagDivisor);
      for (size_t i = 0; i < window->lag.size(); ++i) {
        const Rank member = members->At(static_cast<int32_t>(i));
        absl::Duration& lag = sets_.lag(member);
        lag += (window->lag[i] - lag) * weight / ReadinessTotals::kLagDivisor;
      }
    }
  }
}

// --- before and after ---------------------------------------------------------------------------

absl::Status GenerationSchedules::Restore(const ResumedGeneration::Scheduled& scheduled) {
  const auto impossible = [](const absl::Status& why) {
    return absl::InternalError(why.message());
  };
  const v1::Schedule& schedule = scheduled.schedule;
  const MemberList& members = sets_.At(ProcessSetId{schedule.process_set()}).members();
  ScheduleBatches batches;
  for (const v1::ScheduledBatch& batch : schedule.batches()) {
    std::vector<TensorSpec>& specs = batches.emplace_back();
    for (const v1::TensorSpec& proto : batch.tensors()) {
      absl::StatusOr<TensorSpec> spec = FromProto(proto);
      const absl::Status valid = spec.ok() ? Validate(*spec, messages_.size()) : spec.status();
      if (!valid.ok()) return impossible(valid);
      specs.push_back(*std::move(spec));
    }
  }
  const bool on_devices = OnDevices(batches);
  const absl::Status restored = table_.Restore(schedule.id(), ProcessSetId{schedule.process_set()},
                                               members, std::move(batches), scheduled.frozen);
  if (!restored.ok()) return impossible(restored);
  if (!on_devices) return absl::OkStatus();
  if (devices_.schedule() != 0)
    return absl::InternalError("two schedules of tensors on devices are in force");
  devices_.Begin(schedule.id(), members);
  return absl::OkStatus();
}

void GenerationSchedules::EndRestore(int64_t last_schedule) {
  if (messages_.identity().device_schedules && last_schedule > 0) devices_.AskAll();
  table_.SkipNumbersUpTo(last_schedule);
}

void GenerationSchedules::End() {
  table_.Clear();
  deferred_.clear();
}

absl::Status GenerationSchedules::CheckConsistency() const {
  COORDD_RETURN_IF_ERROR(table_.CheckConsistency());
  if (!devices_.CountsAreRight()) return absl::InternalError("counts of ranks are wrong");
  return absl::OkStatus();
}

}  // namespace coordd
