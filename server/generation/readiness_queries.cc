// What a ReadinessTable can tell about itself: stalls, lag, invariants; and how it is freed.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/generation/readiness_table.h"

namespace coordd {

int64_t ReadinessTable::Free(int64_t most) {
  if (!bundles_.empty()) bundles_.Clear();
  int64_t freed = entries_.Free(most);
  for (auto it = groups_.begin(); it != groups_.end() && freed < most; ++freed) {
    group_bytes_ -= it->second.cost_bytes;
    groups_.erase(it++);
  }
  if (freed < most) freed += tombstones_.Free(most - freed);
  Account();
  return freed;
}

PendingTensor ReadinessTable::Describe(const Entry& entry) const {
  PendingTensor pending{.process_set = process_set_,
                        .name = entry.spec.name,
                        .since = entry.first_report,
                        .ready = entry.in().FirstRanks(kMaxNamedRanks),
                        .missing = {},
                        .missing_count = 0,
                        .ready_count = entry.in().size()};
  if (!IsComplete(entry)) {
    const RankSet missing = Owed(entry.in());
    pending.missing = missing.FirstRanks(kMaxNamedRanks);
    pending.missing_count = missing.size();
    return pending;
  }
  // All are in for this one: it waits for others of its group.
  const TensorGroup& group = groups_.at(entry.spec.group);
  for (int32_t i = 0; i < members_.size(); ++i) {
    const Rank rank = members_.At(i);
    if (group.named_by[static_cast<size_t>(i)] == group.size || joined_.Contains(rank)) continue;
    ++pending.missing_count;
    if (pending.missing.size() < kMaxNamedRanks) pending.missing.push_back(rank);
  }
  return pending;
}

std::string ReadinessTable::WaitsInstead(const Entry& entry, const PendingTensor& pending) const {
  constexpr int kLookedAt = 64;  // the oldest
  if (pending.missing.empty() || pending.ready.empty()) return "";
  const Rank missing = pending.missing.front(), waiting = pending.ready.front();
  int looked_at = 0;
  for (const auto& [id, other] : entries_.by_age()) {
    if (++looked_at > kLookedAt) break;
    if (other == &entry || !other->in().Contains(missing) || other->in().Contains(waiting))
      continue;
    return absl::StrCat("; rank ", ToInt(missing), " waits for tensor ", other->spec.name,
                        ", which rank ", ToInt(waiting),
                        " has not submitted: they call them in different orders, or call others");
  }
  return "";
}

std::vector<PendingTensor> ReadinessTable::Stalled(absl::Time now, absl::Duration age,
                                                   size_t limit) const {
  std::vector<PendingTensor> stalled;
  for (const auto& [id, entry] : entries_.by_age()) {
    if (entry->first_report + age > now || stalled.size() == limit) break;
    stalled.push_back(Describe(*entry));
  }
  return stalled;
}

std::optional<PendingTensor> ReadinessTable::Find(absl::string_view name) const {
  const Entry* entry = entries_.Find(name);
  if (entry == nullptr) return std::nullopt;
  return Describe(*entry);
}

std::optional<PendingTensor> ReadinessTable::Oldest() const {
  if (entries_.empty()) return std::nullopt;
  return Describe(*entries_.by_age().begin()->second);
}

std::vector<PendingTensor> ReadinessTable::NewlyStalled(absl::Time now, absl::Duration age,
                                                        size_t limit, int64_t& count) {
  std::vector<PendingTensor> stalled;
  count = entries_.VisitStalled(now, age, [&](const Entry& entry) {
    if (stalled.size() < limit) stalled.push_back(Describe(entry));
  });
  Account();
  return stalled;
}

absl::Status ReadinessTable::CheckConsistency() const {
  COORDD_RETURN_IF_ERROR(entries_.CheckConsistency());
  COORDD_RETURN_IF_ERROR(bundles_.CheckConsistency());
  if (!bundles_.empty() && !joined_.empty())
    return absl::InternalError("a rank has joined whose reports are counted with others");
  int64_t bytes = 0;
  size_t grouped = 0;
  for (const auto& [id, entry] : entries_.by_age()) {
    const std::string& name = entry->spec.name;
    if (entry->in().empty() || !entry->in().CountsAreRight()) {
      return absl::InternalError(absl::StrCat("tensor ", name, " miscounts its ranks"));
    }
    if (IsComplete(*entry) && entry->spec.group.empty()) {
      return absl::InternalError(absl::StrCat("tensor ", name, " is complete but pending"));
    }
    if (!entry->spec.group.empty()) ++grouped;
  }
  for (const auto& [name, group] : groups_) {
    COORDD_RETURN_IF_ERROR(CheckGroupConsistency(name, group));
    grouped -= group.tensors.size();
    bytes += group.cost_bytes;
  }
  if (grouped != 0) return absl::InternalError("grouped tensors are in no group");
  if (bytes != group_bytes_) return absl::InternalError("the size of groups is miscounted");
  if (counted_.pending != pending() || counted_.tombstones != tombstones() ||
      counted_.state_bytes != state_bytes() || counted_.stalled != stalled() ||
      !joined_.CountsAreRight()) {
    return absl::InternalError("the totals are out of date");
  }
  return tombstones_.CheckConsistency();
}

absl::Status ReadinessTable::CheckGroupConsistency(absl::string_view name,
                                                   const TensorGroup& group) const {
  int32_t complete = 0;
  std::vector<int32_t> named(group.named_by.size());
  for (const Entry* member : group.tensors) {
    if (IsComplete(*member)) ++complete;
    for (Rank rank : member->in().Ranks()) ++named[Index(rank)];
  }
  if (group.tensors.empty() || static_cast<int32_t>(group.tensors.size()) > group.size ||
      complete != group.complete || complete == group.size || named != group.named_by) {
    return absl::InternalError(absl::StrCat("group ", name, " miscounts its tensors"));
  }
  return absl::OkStatus();
}

}  // namespace coordd
