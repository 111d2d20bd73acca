#include "server/generation/schedule_table.h"

#include <algorithm>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

// A schedule that was executed so often has saved more than it cost: beginning and end take four
// messages of each rank, a step at least two.
constexpr int64_t kUsefulCycles = 10;
constexpr int64_t kFinished = std::numeric_limits<int64_t>::max();

absl::Status NotAskedFor(absl::string_view what, int64_t id) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " schedule ", id, ", which was not asked for"));
}

}  // namespace

int64_t ScheduleTable::CostOf(const ScheduleBatches& batches) {
  int64_t bytes = 0;
  for (const auto& batch : batches)
    for (const TensorSpec& spec : batch) bytes += KeptNames::CostOf(spec);
  return bytes;
}

const ScheduleTable::Schedule& ScheduleTable::Begin(ProcessSetId process_set,
                                                    const MemberList& members,
                                                    ScheduleBatches batches) {
  COORDD_CHECK(HasRoom() && !batches.empty());
  const int64_t id = ++last_id_;
  for (const auto& batch : batches)
    for (const TensorSpec& spec : batch) by_name_[process_set].insert_or_assign(spec.name, id);
  Schedule schedule(members);
  schedule.id = id;
  schedule.lane = LaneId{kFirstScheduleLane + static_cast<int32_t>(id - 1)};
  schedule.process_set = process_set;
  schedule.batches = std::move(batches);
  schedule.kept = KeptNames::Hold(names_);
  schedule.kept.Set(CostOf(schedule.batches));
  const auto needs_all = [](const auto& batch) { return NeedsEveryRank(batch.front().kind); };
  schedule.lateness = std::make_unique<CycleLateness>(
      static_cast<size_t>(members.size()),
      std::count_if(schedule.batches.begin(), schedule.batches.end(), needs_all));
  return schedules_.emplace(id, std::move(schedule)).first->second;
}

absl::Status ScheduleTable::Restore(int64_t id, ProcessSetId process_set, const MemberList& members,
                                    ScheduleBatches batches, bool frozen) {
  const int64_t before = last_id_;
  last_id_ = id - 1;  // the next number is this one
  bool valid = id > before && HasRoom() && !batches.empty();
  absl::flat_hash_set<std::string> names;
  for (const auto& batch : batches) {
    valid = valid && !batch.empty();
    for (const TensorSpec& spec : batch) {
      valid = valid && names.insert(spec.name).second;
      const auto set = by_name_.find(process_set);
      valid = valid && (set == by_name_.end() || !set->second.contains(spec.name));
    }
  }
  if (!valid) {
    last_id_ = before;
    return absl::InvalidArgumentError(absl::StrCat("schedule ", id, " behind schedule ", before,
                                                   " has no batches, or tensors of "
                                                   "another one"));
  }
  Begin(process_set, members, std::move(batches));
  Schedule& schedule = schedules_.at(id);
  for (Rank rank : members.Ranks()) schedule.acknowledged.Insert(rank);
  schedule.breaking = frozen;
  return absl::OkStatus();
}

bool ScheduleTable::Supersedes(ProcessSetId process_set, Rank rank, absl::string_view name) const {
  const auto set = by_name_.find(process_set);
  if (set == by_name_.end()) return false;
  const auto found = set->second.find(name);
  return found != set->second.end() && !schedules_.at(found->second).acknowledged.Contains(rank);
}

absl::StatusOr<ScheduleTable::Schedule*> ScheduleTable::Find(Rank rank, int64_t id) {
  const auto found = schedules_.find(id);
  if (found == schedules_.end() || !found->second.members->Contains(rank) ||
      found->second.cut.has_value()) {
    return absl::NotFoundError("");
  }
  return &found->second;
}

absl::Status ScheduleTable::Acknowledge(Rank rank, int64_t id) {
  const auto schedule = Find(rank, id);
  if (schedule.ok() && (*schedule)->acknowledged.Insert(rank)) return absl::OkStatus();
  return NotAskedFor("an acknowledgement of", id);
}

absl::Status ScheduleTable::CheckBreak(Rank rank, int64_t id) {
  const auto schedule = Find(rank, id);
  if (schedule.ok() && (*schedule)->acknowledged.Contains(rank) &&
      !(*schedule)->replied.Contains(rank)) {
    return absl::OkStatus();
  }
  return NotAskedFor("a break of", id);
}

absl::StatusOr<std::optional<ScheduleCut>> ScheduleTable::Reply(Rank rank, int64_t id,
                                                                int64_t launched) {
  const auto found = Find(rank, id);
  if (!found.ok() || !(*found)->breaking || !(*found)->acknowledged.Contains(rank) ||
      launched < 0 || launched > kMaxPosition || !(*found)->replied.Insert(rank)) {
    return NotAskedFor("a position in", id);
  }
  Schedule& schedule = **found;
  schedule.launched = std::max(schedule.launched, launched);
  if (!schedule.replied.full()) return std::optional<ScheduleCut>();
  schedule.cut = schedule.launched;
  ForgetNames(schedule);
  const int64_t cycles = *schedule.cut / static_cast<int64_t>(schedule.batches.size());
  return std::optional<ScheduleCut>({id, schedule.process_set, *schedule.cut,
                                     cycles >= kUsefulCycles, OnDevices(schedule.batches)});
}

void ScheduleTable::ForgetNames(const Schedule& schedule) {
  const auto set = by_name_.find(schedule.process_set);
  for (const auto& batch : schedule.batches)
    for (const TensorSpec& spec : batch) set->second.erase(spec.name);
  if (set->second.empty()) by_name_.erase(set);
}

template <typename Condition>
std::vector<const ScheduleTable::Schedule*> ScheduleTable::BreakIf(Condition condition) {
  std::vector<const Schedule*> broken;
  for (auto& [id, schedule] : schedules_) {
    if (schedule.breaking || !condition(schedule)) continue;
    schedule.breaking = true;
    broken.push_back(&schedule);
  }
  return broken;
}

std::vector<const ScheduleTable::Schedule*> ScheduleTable::Break(int64_t id) {
  return BreakIf([id](const Schedule& schedule) { return schedule.id == id; });
}

std::vector<const ScheduleTable::Schedule*> ScheduleTable::BreakSet(ProcessSetId process_set) {
  return BreakIf([=](const Schedule& schedule) { return schedule.process_set == process_set; });
}

std::vector<const ScheduleTable::Schedule*> ScheduleTable::BreakRank(Rank rank) {
  return BreakIf([=](const Schedule& schedule) { return schedule.members->Contains(rank); });
}

bool ScheduleTable::InForce(ProcessSetId process_set) const {
  return by_name_.contains(process_set);
}

bool ScheduleTable::InForce(Rank rank) const {
  return std::any_of(schedules_.begin(), schedules_.end(), [rank](const auto& entry) {
    return !entry.second.cut.has_value() && entry.second.members->Contains(rank);
  });
}

bool ScheduleTable::InForce(LaneId lane) const {
  const auto found = schedules_.find(ToInt(lane) - kFirstScheduleLane + 1);
  return found != schedules_.end() && !found->second.cut.has_value();
}

bool ScheduleTable::InForce(ProcessSetId process_set, absl::string_view name) const {
  const auto set = by_name_.find(process_set);
  return set != by_name_.end() && set->second.contains(name);
}

int64_t ScheduleTable::in_force() const {
  return std::count_if(schedules_.begin(), schedules_.end(),
                       [](const auto& entry) { return !entry.second.cut.has_value(); });
}

LaneId ScheduleTable::LargestOf(ProcessSetId process_set) const {
  LaneId found;
  size_t most = 0;
  for (const auto& [id, schedule] : schedules_) {
    if (schedule.process_set != process_set || schedule.breaking) continue;
    size_t tensors = 0;
    for (const auto& batch : schedule.batches) tensors += batch.size();
    if (tensors > most) found = schedule.lane;
    most = std::max(most, tensors);
  }
  return found;
}

void ScheduleTable::Heartbeat(Rank rank, const std::map<LaneId, int64_t>& launched,
                              absl::Time now) {
  for (auto it = schedules_.begin(); it != schedules_.end();) {
    Schedule& schedule = it->second;
    const int32_t index = schedule.members->IndexOf(rank);
    const auto said = launched.find(schedule.lane);
    if (index >= 0 && said != launched.end()) {
      NotePosition(schedule, static_cast<size_t>(index), said->second, now);
    } else if (index >= 0 && schedule.cut.has_value()) {
      NotePosition(schedule, static_cast<size_t>(index), kFinished, now);
    }
    const bool finished = schedule.cut.has_value() && schedule.behind == kFinished;
    it = finished ? schedules_.erase(it) : std::next(it);
  }
}

std::optional<CycleLateness::Window> ScheduleTable::Told(Rank rank, LaneId lane,
                                                         const v1::LaneMark& mark,
                                                         const MemberList*& members) {
  const auto found = schedules_.find(ToInt(lane) - kFirstScheduleLane + 1);
  if (found == schedules_.end()) return std::nullopt;
  Schedule& schedule = found->second;
  const int32_t index = schedule.members->IndexOf(rank);
  if (index < 0) return std::nullopt;
  members = schedule.members;
  return schedule.lateness->Told(static_cast<size_t>(index), mark.cycles(),
                                 absl::Nanoseconds(mark.busy_ns()));
}

void ScheduleTable::NotePosition(Schedule& schedule, size_t index, int64_t position,
                                 absl::Time now) {
  const auto before = schedule.ranks_at.find(std::exchange(schedule.positions[index], position));
  if (--before->second == 0) schedule.ranks_at.erase(before);
  ++schedule.ranks_at[position];
  const int64_t most = schedule.ranks_at.rbegin()->first;
  const int64_t ahead = schedule.cut.has_value() ? std::min(most, *schedule.cut) : most;
  const int64_t behind = schedule.ranks_at.begin()->first;
  const bool advanced = behind > std::exchange(schedule.behind, behind);
  if (behind >= ahead) {
    schedule.behind_since = absl::InfiniteFuture();
    schedule.stall_told = false;
  } else if (advanced || schedule.behind_since == absl::InfiniteFuture()) {
    schedule.behind_since = now;
    schedule.stall_told = false;
  }
}

PendingTensor ScheduleTable::Describe(const Schedule& schedule) const {
  const size_t batch = static_cast<size_t>(schedule.behind) % schedule.batches.size();
  PendingTensor pending{.process_set = schedule.process_set,
                        .name = schedule.batches[batch].front().name,
                        .since = schedule.behind_since,
                        .ready = {},
                        .missing = {}};
  for (size_t i = 0; i < schedule.positions.size(); ++i) {
    const Rank rank = schedule.members->At(static_cast<int32_t>(i));
    const bool missing = schedule.positions[i] == schedule.behind;
    std::vector<Rank>& ranks = missing ? pending.missing : pending.ready;
    ++(missing ? pending.missing_count : pending.ready_count);
    if (ranks.size() < ReadinessTable::kMaxNamedRanks) ranks.push_back(rank);
  }
  return pending;
}

std::vector<PendingTensor> ScheduleTable::Stalled(absl::Time now, absl::Duration age) const {
  std::vector<PendingTensor> stalled;
  for (const auto& [id, schedule] : schedules_)
    if (schedule.behind_since + age <= now) stalled.push_back(Describe(schedule));
  std::stable_sort(
      stalled.begin(), stalled.end(),
      [](const PendingTensor& a, const PendingTensor& b) { return a.since < b.since; });
  return stalled;
}

std::vector<PendingTensor> ScheduleTable::NewlyStalled(absl::Time now, absl::Duration age) {
  std::vector<PendingTensor> stalled;
  for (auto& [id, schedule] : schedules_) {
    if (schedule.stall_told || schedule.behind_since + age > now) continue;
    schedule.stall_told = true;
    stalled.push_back(Describe(schedule));
  }
  return stalled;
}

int64_t ScheduleTable::stalled() const {
  return std::count_if(schedules_.begin(), schedules_.end(),
                       [](const auto& entry) { return entry.second.stall_told; });
}

absl::Time ScheduleTable::NextStall(absl::Duration warning, absl::Duration abort) const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, schedule] : schedules_)
    next = std::min(next, schedule.behind_since + (schedule.stall_told ? abort : warning));
  return next;
}

void ScheduleTable::Forgive(absl::Duration gap) {
  for (auto& [id, schedule] : schedules_) schedule.behind_since += gap;
}

void ScheduleTable::EndSet(ProcessSetId process_set) {
  by_name_.erase(process_set);
  std::erase_if(schedules_,
                [=](const auto& entry) { return entry.second.process_set == process_set; });
}

absl::Status ScheduleTable::CheckConsistency() const {
  size_t names = 0, indexed = 0;
  for (const auto& [set, by_name] : by_name_) indexed += by_name.size();
  for (const auto& [id, schedule] : schedules_) {
    if (schedule.cut.has_value()) continue;
    for (const auto& batch : schedule.batches) names += batch.size();
    if (schedule.replied.full()) {
      return absl::InternalError(absl::StrCat("schedule ", id, " should have been cut"));
    }
    if (!schedule.breaking && !schedule.replied.empty()) {
      return absl::InternalError(absl::StrCat("schedule ", id, " was not frozen"));
    }
  }
  if (names == indexed) return absl::OkStatus();
  return absl::InternalError("names of schedules are not indexed as they should be");
}

}  // namespace coordd
