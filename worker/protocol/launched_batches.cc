#include "worker/protocol/launched_batches.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/execute/worker_errors.h"

namespace coordd {

void LaunchedBatch::Add(TensorId id, SharedSpec spec, absl::Time its_deadline) {
  if (HasPayload(spec->kind)) bytes += SizeBytes(*spec);
  if (its_deadline < deadline) {
    deadline = its_deadline;
    overdue_tensor = spec->name;
  }
  tensors.emplace_back(id, std::move(spec));
}

absl::Status LaunchedBatches::Launch(BatchKey key, LaunchedBatch&& batch) {
  COORDD_RETURN_IF_ERROR(sequencer_.Launch(key.first, key.second));
  executing_.emplace(key, std::move(batch));
  return absl::OkStatus();
}

LaunchedBatch LaunchedBatches::Complete(const BatchDone& done, absl::Time now) {
  const auto found = executing_.find(BatchKey{done.lane, done.sequence});
  COORDD_CHECK(found != executing_.end());
  LaunchedBatch batch = std::move(found->second);
  executing_.erase(found);
  sequencer_.Complete(done.lane, done.sequence);
  if (!done.status.ok()) {
    Interrupted& lane = interrupted_[done.lane];
    lane.first = lane.first == 0 ? done.sequence : std::min(lane.first, done.sequence);
    if (done.has_result) lane.held = std::max(lane.held, done.sequence);
  }
  if (left_behind_deadline_ != absl::InfiniteFuture())
    left_behind_deadline_ = now + kLeftBehindWait;
  return batch;
}

const LaunchedBatch* LaunchedBatches::Find(BatchKey key) const {
  const auto found = executing_.find(key);
  return found == executing_.end() ? nullptr : &found->second;
}

bool LaunchedBatches::has_scheduled() const {
  return std::any_of(executing_.begin(), executing_.end(), [](const auto& entry) {
    return ToInt(entry.first.first) >= kFirstScheduleLane;
  });
}

absl::Time LaunchedBatches::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [key, batch] : executing_) next = std::min(next, batch.deadline);
  return next;
}

const std::pair<const BatchKey, LaunchedBatch>* LaunchedBatches::TakeOverdue(absl::Time now) {
  for (auto& entry : executing_) {
    if (entry.second.deadline > now) continue;
    entry.second.overdue = true;
    return &entry;
  }
  return nullptr;
}

void LaunchedBatches::Describe(v1::RecoveryReport& report) const {
  std::map<LaneId, int64_t> launched = sequencer_.ended();
  for (const LaneProgress& lane : sequencer_.Progress()) launched[lane.lane] = lane.launched;
  for (const auto& [lane, last] : launched) {
    v1::LaneReport& entry = *report.add_lanes();
    entry.set_lane(ToInt(lane));
    entry.set_launched(last);
    const auto interrupted = interrupted_.find(lane);
    const bool all = interrupted == interrupted_.end();
    entry.set_completed(all ? last : interrupted->second.first - 1);
    entry.set_held(all ? last : std::max(entry.completed(), interrupted->second.held));
  }
}

bool LaunchedBatches::HasResultsUpTo(LaneId lane, int64_t sequence) const {
  const auto interrupted = interrupted_.find(lane);
  if (interrupted == interrupted_.end()) return true;
  return sequence < interrupted->second.first || sequence <= interrupted->second.held;
}

void LaunchedBatches::AwaitVerdict(LaunchedBatch::Tensors tensors) {
  for (auto& tensor : tensors) awaiting_verdict_.push_back(std::move(tensor));
}

void LaunchedBatches::FailAwaiting(const absl::Status& why, const WorkerTurn& turn) {
  for (const auto& [id, spec] : awaiting_verdict_)
    turn.out.push_back(FailTensor{id, ForTensor(spec->name, why)});
  awaiting_verdict_.clear();
}

void LaunchedBatches::WatchSchedules(absl::Time now) {
  if (has_scheduled()) left_behind_deadline_ = now + kLeftBehindWait;
}

void LaunchedBatches::WatchAll(absl::Time now) {
  all_are_watched_ = true;
  left_behind_deadline_ = now + kLeftBehindWait;
}

bool LaunchedBatches::TakeLeftBehind(absl::Time now) {
  if (now < left_behind_deadline_) return false;
  left_behind_deadline_ = absl::InfiniteFuture();
  return has_scheduled() || (all_are_watched_ && !empty());
}

}  // namespace coordd
