#include "worker/protocol/scheduled_lane.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace coordd {

ScheduledLane::ScheduledLane(int64_t id, LaneId lane, ProcessSetId process_set,
                             std::vector<std::vector<TensorSpec>> batches)
    : id_(id), lane_(lane), process_set_(process_set) {
  for (std::vector<TensorSpec>& batch : batches) {
    COORDD_CHECK(!batch.empty());
    Range range;
    range.begin = slots_.size();
    range.end = slots_.size() + batch.size();
    for (TensorSpec& spec : batch) {
      if (!spec.group.empty()) groups_.insert(spec.group);
      slots_.push_back({std::move(spec), batches_.size(), {}, false, {}});
    }
    batches_.push_back(range);
  }
  COORDD_CHECK(!batches_.empty());
  FormUnits();
}

// A batch belongs to the unit before it if a group reaches from there to it or over it.
void ScheduledLane::FormUnits() {
  absl::flat_hash_map<std::string, size_t> last_batch_of;
  for (const Slot& slot : slots_)
    if (!slot.spec->group.empty()) last_batch_of[slot.spec->group] = slot.batch;
  size_t reach = 0;  // the last batch that groups so far reach
  for (size_t i = 0; i < batches_.size(); ++i) {
    Range& batch = batches_[i];
    batch.begins_unit = i == 0 || reach < i;
    if (batch.begins_unit) units_.emplace_back();
    batch.unit = units_.size() - 1;
    units_.back().size += batch.end - batch.begin;
    for (size_t slot = batch.begin; slot < batch.end; ++slot) {
      const std::string& group = slots_[slot].spec->group;
      if (!group.empty()) reach = std::max(reach, last_batch_of.at(group));
    }
  }
}

std::vector<bool> ScheduledLane::NeedingEveryRank() const {
  std::vector<bool> needing;
  for (const Range& range : batches_)
    needing.push_back(NeedsEveryRank(slots_[range.begin].spec->kind));
  return needing;
}

std::vector<const TensorSpec*> ScheduledLane::SpecsOf(size_t batch) const {
  std::vector<const TensorSpec*> specs;
  for (size_t i = batches_[batch].begin; i < batches_[batch].end; ++i)
    specs.push_back(&*slots_[i].spec);
  return specs;
}

bool ScheduledLane::HasGroup(absl::string_view group) const { return groups_.contains(group); }

// Where the batch comes next.
int64_t ScheduledLane::NextPosition(size_t batch) const {
  const int64_t count = static_cast<int64_t>(batches_.size());
  const int64_t ahead = (static_cast<int64_t>(batch) - launched_ % count + count) % count;
  return launched_ + 1 + ahead;
}

bool ScheduledLane::Wants(size_t slot) const {
  return !cut_.has_value() || NextPosition(slots_[slot].batch) <= *cut_;
}

std::optional<size_t> ScheduledLane::NextSlotOf(const SharedSpec& spec) const {
  if (!slots_[next_slot_].known.Is(spec)) return std::nullopt;
  return next_slot_;
}

absl::Status ScheduledLane::Take(size_t index, HeldTensor tensor, absl::Time now) {
  Slot& slot = slots_[index];
  COORDD_CHECK(ToInt(slot.held.id) == 0 && ToInt(tensor.id) != 0);
  slot.held = std::move(tensor);
  next_slot_ = index + 1 == slots_.size() ? 0 : index + 1;
  if (!slot.known.Is(slot.held.spec)) {
    slot.differs = !SameCall(*slot.spec, *slot.held.spec);
    if (!slot.differs) slot.known = slot.held.spec;
  }
  Unit& unit = units_[batches_[slot.batch].unit];
  ++unit.held;
  ++held_;
  last_taken_ = now;
  earliest_deadline_ = std::min(earliest_deadline_, slot.held.deadline);
  if (!slot.differs) return absl::OkStatus();
  ++unit.differing;
  return Differs(slot);
}

absl::Status ScheduledLane::Differs(const Slot& slot) const {
  const TensorSpec& now = *slot.held.spec;
  if (now.group != slot.spec->group || now.group_size != slot.spec->group_size) {
    auto group = [](const TensorSpec& spec) {
      return spec.group.empty() ? "none" : absl::StrCat(spec.group, " of ", spec.group_size);
    };
    return absl::FailedPreconditionError(absl::StrCat("tensor ", now.name, " came in group ",
                                                      group(now), ", its schedule has group ",
                                                      group(*slot.spec)));
  }
  return absl::FailedPreconditionError(absl::StrCat("tensor ", now.name, " came as ", ToString(now),
                                                    ", its schedule has ", ToString(*slot.spec)));
}

std::optional<ScheduledLane::Batch> ScheduledLane::Next() {
  if (cut_.has_value() ? launched_ >= *cut_ : frozen_) return std::nullopt;
  const Range& next = NextRange();
  const Unit& unit = units_[next.unit];
  if (next.begins_unit && (unit.held < unit.size || unit.differing > 0)) return std::nullopt;
  return Launch();
}

std::optional<ScheduledLane::Batch> ScheduledLane::NextWithAbsent() {
  COORDD_CHECK(cut_.has_value());
  if (launched_ >= *cut_) return std::nullopt;
  return Launch();
}

ScheduledLane::Batch ScheduledLane::Launch() {
  const Range& range = NextRange();
  Batch batch{.sequence = ++launched_, .tensors = {}};
  batch.tensors.reserve(range.end - range.begin);
  for (size_t i = range.begin; i < range.end; ++i) {
    batch.tensors.push_back(Release(slots_[i]));
    if (ToInt(batch.tensors.back().id) == 0) batch.tensors.back().spec = slots_[i].spec;
  }
  return batch;
}

HeldTensor ScheduledLane::Release(Slot& slot) {
  HeldTensor held = std::exchange(slot.held, HeldTensor{});
  if (ToInt(held.id) == 0) return held;
  Unit& unit = units_[batches_[slot.batch].unit];
  --unit.held;
  if (std::exchange(slot.differs, false)) --unit.differing;
  if (--held_ == 0) earliest_deadline_ = absl::InfiniteFuture();
  return held;
}

absl::StatusOr<std::vector<HeldTensor>> ScheduledLane::Cut(int64_t position) {
  COORDD_CHECK(frozen_ && !cut_.has_value());
  if (position < launched_) {
    return absl::InternalError(absl::StrCat("coordd cut schedule ", id_, " at ", position,
                                            ", behind which this rank has launched ", launched_));
  }
  if (position - launched_ > kCutAheadMax) {
    return absl::InternalError(absl::StrCat("coordd cut schedule ", id_, " at ", position,
                                            ", of which this rank has launched ", launched_,
                                            "; expected at most ", kCutAheadMax, " more"));
  }
  cut_ = position;
  std::vector<HeldTensor> behind;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (ToInt(slot.held.id) == 0) continue;
    if (!Wants(i)) {
      behind.push_back(Release(slot));
    } else if (slot.differs) {
      return Differs(slot);
    }
  }
  std::sort(behind.begin(), behind.end(),
            [](const HeldTensor& a, const HeldTensor& b) { return a.id < b.id; });
  return behind;
}

std::vector<HeldTensor*> ScheduledLane::AllHeld() {
  std::vector<HeldTensor*> held;
  for (Slot& slot : slots_)
    if (ToInt(slot.held.id) != 0) held.push_back(&slot.held);
  std::sort(held.begin(), held.end(),
            [](const HeldTensor* a, const HeldTensor* b) { return a->id < b->id; });
  return held;
}

const HeldTensor* ScheduledLane::Oldest() const {
  const HeldTensor* oldest = nullptr;
  if (held_ == 0) return oldest;
  for (const Slot& slot : slots_) {
    if (ToInt(slot.held.id) == 0) continue;
    if (oldest == nullptr || slot.held.id < oldest->id) oldest = &slot.held;
  }
  return oldest;
}

void ScheduledLane::FindEarliestDeadline() {
  earliest_deadline_ = absl::InfiniteFuture();
  for (const Slot& slot : slots_) {
    if (ToInt(slot.held.id) == 0) continue;
    earliest_deadline_ = std::min(earliest_deadline_, slot.held.deadline);
  }
}

std::vector<HeldTensor> ScheduledLane::TakeAllHeld() {
  std::vector<HeldTensor> all;
  for (Slot& slot : slots_)
    if (ToInt(slot.held.id) != 0) all.push_back(Release(slot));
  return all;
}

absl::Time ScheduledLane::waiting_since() const {
  return held_ == 0 ? absl::InfiniteFuture() : last_taken_;
}

std::vector<std::string> ScheduledLane::Missing(size_t limit) const {
  std::vector<std::string> names;
  for (const Slot& slot : slots_) {
    if (batches_[slot.batch].unit != NextRange().unit || ToInt(slot.held.id) != 0) continue;
    if (names.size() == limit) break;
    names.push_back(slot.spec->name);
  }
  return names;
}

}  // namespace coordd
