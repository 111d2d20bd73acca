// What a generation begins with: the process sets of the one before; or, under a coordd that was
// started again, where its ranks are. docs/design/recovery.md, part B.
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "server/generation/generation_state.h"

namespace coordd {
namespace {

absl::Status Impossible(const absl::Status& why) { return absl::InternalError(why.message()); }

}  // namespace

void GenerationState::TakeOver(const v1::ProcessSets& sets) {
  for (const v1::ProcessSet& set : sets.sets()) {
    const ProcessSetId id{set.process_set()};
    std::vector<Rank> ranks;
    for (int32_t rank : set.ranks()) ranks.push_back(Rank{rank});
    COORDD_CHECK(sets_.Restore(id, ranks, /*is_pair=*/false).ok());
    AddSet(id, id, *sets_.Find(id));
  }
  sets_.NoteEarlier(sets.last_process_set());
}

absl::Status GenerationState::Restore(const ResumedGeneration& resumed, absl::Time now) {
  for (const ResumedGeneration::Set& set : resumed.sets) {
    if (set.id != ProcessSetId{0}) {
      const absl::Status restored = sets_.Restore(set.id, set.ranks, set.is_pair);
      if (!restored.ok()) return Impossible(restored);
      SetState& added = AddSet(set.id, set.is_pair ? ProcessSetId{0} : set.id, *sets_.Find(set.id));
      added.is_pair = set.is_pair;
      added.announced = set.is_pair;
    }
    states_.at(set.id)->sequence = set.launched;
  }
  sets_.SkipNumbersUpTo(resumed.last_process_set);
  for (const ResumedGeneration::Scheduled& entry : resumed.schedules) {
    const v1::Schedule& schedule = entry.schedule;
    const MemberList& members = *sets_.Find(ProcessSetId{schedule.process_set()});
    ScheduleBatches batches;
    for (const v1::ScheduledBatch& batch : schedule.batches()) {
      std::vector<TensorSpec>& specs = batches.emplace_back();
      for (const v1::TensorSpec& proto : batch.tensors()) {
        absl::StatusOr<TensorSpec> spec = FromProto(proto);
        const absl::Status valid = spec.ok() ? Validate(*spec, size()) : spec.status();
        if (!valid.ok()) return Impossible(valid);
        specs.push_back(*std::move(spec));
      }
    }
    const bool on_devices = OnDevices(batches);
    const absl::Status restored =
        schedules_.Restore(schedule.id(), ProcessSetId{schedule.process_set()}, members,
                           std::move(batches), entry.frozen);
    if (!restored.ok()) return Impossible(restored);
    if (!on_devices) continue;
    if (device_order_.schedule() != 0)
      return absl::InternalError("two schedules of tensors on devices are in force");
    device_order_.Begin(schedule.id(), members);
  }
  if (identity_.device_schedules && resumed.last_schedule > 0) device_order_.AskAll();
  schedules_.SkipNumbersUpTo(resumed.last_schedule);
  std::map<int64_t, ProcessSetId> removals;
  for (const ResumedGeneration::Removal& removal : resumed.removals)
    removals.emplace(removal.request, removal.process_set);
  requests_.Restore(resumed.answered_requests, removals, now);
  position_ = resumed.position;
  return absl::OkStatus();
}

}  // namespace coordd
