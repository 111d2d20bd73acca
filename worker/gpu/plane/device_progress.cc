#include "worker/gpu/plane/device_progress.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

v1::DeviceStage StageOf(DeviceProgress::Stage stage) {
  switch (stage) {
    case DeviceProgress::Stage::kLaunching:
      return v1::DEVICE_STAGE_LAUNCHING;
    case DeviceProgress::Stage::kEnqueued:
      return v1::DEVICE_STAGE_ENQUEUED;
    case DeviceProgress::Stage::kHeld:
      return v1::DEVICE_STAGE_HELD;
    case DeviceProgress::Stage::kStarted:
      return v1::DEVICE_STAGE_STARTED;
  }
  return v1::DEVICE_STAGE_UNSPECIFIED;
}

}  // namespace

DeviceProgress::Number DeviceProgress::Launching(const BatchJob& batch, absl::Time now) {
  Entry entry;
  entry.batch.first = batch.tensors().front().shared_spec();
  entry.batch.tensors = static_cast<int32_t>(batch.tensors().size());
  entry.batch.lane = batch.lane();
  entry.batch.sequence = batch.sequence();
  entry.batch.process_set = batch.process_set();
  entry.batch.launched = entry.batch.in_stage_since = now;
  entry.turn = now;
  MutexLock lock(&mu_);
  entries_.push_back(std::move(entry));
  return first_ + static_cast<Number>(entries_.size()) - 1;
}

DeviceProgress::Entry* DeviceProgress::Find(Number number) {
  const Number index = number - first_;
  COORDD_CHECK(index >= 0 && index < static_cast<Number>(entries_.size()));
  return &entries_[static_cast<size_t>(index)];
}

void DeviceProgress::Enter(Entry& entry, Stage stage, absl::Time now) {
  if (entry.batch.stage == stage) return;
  entry.batch.stage = stage;
  entry.batch.in_stage_since = now;
}

void DeviceProgress::Enqueued(Number number, absl::Time now) {
  MutexLock lock(&mu_);
  Entry& entry = *Find(number);
  entry.turn = std::max(entry.turn, now);
  Enter(entry, Stage::kEnqueued, now);
}

absl::Time DeviceProgress::Ended(Number number, absl::Time now) {
  MutexLock lock(&mu_);
  Entry& entry = *Find(number);
  entry.ended = true;
  const absl::Time turn = std::min(entry.turn, now);
  // Of those that fail one that was never on the stream may end before others.
  while (!entries_.empty() && entries_.front().ended) {
    entries_.pop_front();
    ++first_;
  }
  if (!entries_.empty()) entries_.front().turn = std::max(entries_.front().turn, now);
  return turn;
}

std::optional<DeviceProgress::Number> DeviceProgress::Unclear(absl::Time launched_by) {
  MutexLock lock(&mu_);
  if (entries_.empty()) return std::nullopt;
  const Standing& first = entries_.front().batch;
  const bool is_clear = first.stage == Stage::kLaunching || first.stage == Stage::kStarted;
  if (is_clear || first.launched > launched_by) return std::nullopt;
  return first_;
}

void DeviceProgress::NoteTensors(Number number, bool are_made, absl::Time now) {
  MutexLock lock(&mu_);
  Entry& entry = *Find(number);
  // Of one that is found to be made at the first look it was so when its turn came, for all that
  // is known.
  const bool first_look = entry.batch.stage == Stage::kEnqueued;
  Enter(entry, are_made ? Stage::kStarted : Stage::kHeld, first_look ? entry.turn : now);
}

std::vector<DeviceProgress::Standing> DeviceProgress::Launched(absl::Time launched_by,
                                                               size_t limit) {
  std::vector<Standing> launched;
  MutexLock lock(&mu_);
  for (const Entry& entry : entries_) {
    if (launched.size() == limit || entry.batch.launched > launched_by) break;
    if (!entry.ended) launched.push_back(entry.batch);
  }
  return launched;
}

void TellOfDevice(const std::vector<DeviceProgress::Standing>& standing, absl::Time now,
                  v1::Heartbeat& heartbeat) {
  for (const DeviceProgress::Standing& batch : standing) {
    if (heartbeat.device_batches_size() == kMaxDeviceBatches) return;
    v1::DeviceBatch& told = *heartbeat.add_device_batches();
    told.set_lane(ToInt(batch.lane));
    told.set_sequence(batch.sequence);
    told.set_tensor(ShortenedText(PrintableText(batch.first->name), kMaxDeviceBatchNameBytes));
    told.set_tensors(batch.tensors);
    told.set_kind(static_cast<v1::CollectiveKind>(batch.first->kind));
    told.set_process_set(ToInt(batch.process_set));
    told.set_stage(StageOf(batch.stage));
    ToProto(std::max(now - batch.launched, absl::ZeroDuration()), told.mutable_on_device());
    ToProto(std::max(now - batch.in_stage_since, absl::ZeroDuration()), told.mutable_in_stage());
  }
}

}  // namespace coordd
