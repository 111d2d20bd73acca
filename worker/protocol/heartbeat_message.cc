#include "worker/protocol/heartbeat_message.h"

#include <map>
#include <string>

namespace coordd {
namespace {

// A bound of session.proto.
constexpr size_t kMaxLanesPerHeartbeat = 256;

void SetDuration(absl::Duration from, google::protobuf::Duration* to) {
  to->set_seconds(absl::ToInt64Seconds(from));
  to->set_nanos(static_cast<int32_t>((from - absl::Seconds(to->seconds())) / absl::Nanoseconds(1)));
}

void SetWaiting(const std::string& tensor, absl::Duration since, v1::LanePosition& position) {
  position.set_oldest_waiting(tensor);
  SetDuration(since, position.mutable_waiting());
}

void TellOfSchedule(ScheduledWork::Scheduled& scheduled, absl::Time now,
                    v1::LanePosition& position) {
  if (const HeldTensor* held = scheduled.lane->Oldest())
    SetWaiting(held->spec->name, now - held->submitted_at, position);
  for (const CycleMarks::Mark& mark : scheduled.marks->Take()) {
    v1::LaneMark& told = *position.add_marks();
    told.set_cycles(mark.cycles);
    told.set_busy_ns(absl::ToInt64Nanoseconds(mark.busy));
  }
}

}  // namespace

v1::Heartbeat HeartbeatOf(const PendingTensors& pending, WorkerGeneration& generation,
                          const WorkTotals& totals, absl::Time now) {
  v1::Heartbeat heartbeat;
  heartbeat.set_sent_ns(absl::ToUnixNanos(now));
  heartbeat.set_collectives_completed(totals.collectives);
  heartbeat.set_bytes_reduced(totals.bytes);
  heartbeat.set_batches_completed(totals.batches);
  // A rank that waits for its first batch has a position too.
  std::map<LaneId, LaneProgress> lanes = {{LaneId{0}, {}}};
  for (const LaneProgress& lane : generation.launched.Progress()) lanes[lane.lane] = lane;
  std::map<LaneId, const PendingTensors::Tensor*> oldest;  // they are ordered by age
  for (const auto& [id, tensor] : pending.tensors()) {
    const LaneId lane{ToInt(tensor.spec->process_set)};
    if (oldest.emplace(lane, &tensor).second) lanes.try_emplace(lane, LaneProgress{lane});
  }
  ScheduledWork::Lanes& schedules = generation.schedules.lanes();
  for (const auto& [id, scheduled] : schedules) lanes.try_emplace(id, LaneProgress{id});
  for (const auto& [id, lane] : lanes) {
    if (static_cast<size_t>(heartbeat.lanes_size()) == kMaxLanesPerHeartbeat) break;
    v1::LanePosition& position = *heartbeat.add_lanes();
    position.set_lane(ToInt(id));
    position.set_launched(lane.launched);
    position.set_completed(lane.completed);
    const auto scheduled = schedules.find(id);
    if (scheduled != schedules.end()) {
      TellOfSchedule(scheduled->second, now, position);
      continue;
    }
    const auto waiting = oldest.find(id);
    if (waiting == oldest.end()) continue;
    SetWaiting(waiting->second->spec->name, now - waiting->second->submitted_at, position);
  }
  return heartbeat;
}

}  // namespace coordd
