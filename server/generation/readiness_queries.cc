// What a ReadinessTable can tell about itself: stalls, lag, invariants.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/generation/readiness_table.h"

namespace coordd {

PendingTensor ReadinessTable::Describe(const Entry& entry) const {
  PendingTensor pending{.process_set = process_set_,
                        .name = entry.spec.name,
                        .since = entry.first_report,
                        .ready = In(entry).FirstRanks(kMaxNamedRanks),
                        .missing = {},
                        .missing_count = 0,
                        .ready_count = In(entry).size()};
  if (!IsComplete(entry)) {
    const RankSet missing = Owed(In(entry));
    pending.missing = missing.FirstRanks(kMaxNamedRanks);
    pending.missing_count = missing.size();
    return pending;
  }
  // All are in for this one: it waits for others of its group.
  const Group& group = groups_.at(entry.spec.group);
  for (int32_t i = 0; i < members_.size(); ++i) {
    const Rank rank = members_.At(i);
    if (group.named_by[static_cast<size_t>(i)] == group.size || joined_.Contains(rank)) continue;
    ++pending.missing_count;
    if (pending.missing.size() < kMaxNamedRanks) pending.missing.push_back(rank);
  }
  return pending;
}

std::vector<PendingTensor> ReadinessTable::Stalled(absl::Time now, absl::Duration age,
                                                   size_t limit) const {
  std::vector<PendingTensor> stalled;
  for (const auto& [id, entry] : by_age_) {
    if (entry->first_report + age > now || stalled.size() == limit) break;
    stalled.push_back(Describe(*entry));
  }
  return stalled;
}

std::optional<PendingTensor> ReadinessTable::Find(absl::string_view name) const {
  const Entry* entry = FindEntry(name);
  if (entry == nullptr) return std::nullopt;
  return Describe(*entry);
}

std::optional<PendingTensor> ReadinessTable::Oldest() const {
  if (by_age_.empty()) return std::nullopt;
  return Describe(*by_age_.begin()->second);
}

std::vector<PendingTensor> ReadinessTable::NewlyStalled(absl::Time now, absl::Duration age,
                                                        size_t limit, int64_t& count) {
  std::vector<PendingTensor> stalled;
  count = 0;
  // Ids follow the first reports, so what is stalled is always a prefix.
  for (auto it = by_age_.upper_bound(last_stalled_id_);
       it != by_age_.end() && it->second->first_report + age <= now; ++it) {
    if (stalled.size() < limit) stalled.push_back(Describe(*it->second));
    last_stalled_id_ = it->first;
    ++count;
  }
  stalled_ += count;
  Account();
  return stalled;
}

absl::Time ReadinessTable::NextStall(absl::Duration warning, absl::Duration abort) const {
  if (by_age_.empty()) return absl::InfiniteFuture();
  absl::Time next = by_age_.begin()->second->first_report + abort;
  const auto fresh = by_age_.upper_bound(last_stalled_id_);
  if (fresh != by_age_.end()) next = std::min(next, fresh->second->first_report + warning);
  return next;
}

void ReadinessTable::Forgive(absl::Duration gap) {
  for (auto& [id, entry] : by_age_) entry->first_report += gap;
}

absl::Status ReadinessTable::CheckConsistency() const {
  if (entries_.size() != by_age_.size()) return absl::InternalError("entries and ages differ");
  int64_t bytes = 0;
  int64_t stalled = 0;
  size_t grouped = 0;
  for (const auto& [name, entry] : entries_) {
    const auto aged = by_age_.find(entry->id);
    if (aged == by_age_.end() || aged->second != entry.get() || entry->spec.name != name) {
      return absl::InternalError(absl::StrCat("tensor ", name, " is indexed wrongly"));
    }
    if (In(*entry).empty() || !In(*entry).CountsAreRight()) {
      return absl::InternalError(absl::StrCat("tensor ", name, " miscounts its ranks"));
    }
    if (IsComplete(*entry) && entry->spec.group.empty()) {
      return absl::InternalError(absl::StrCat("tensor ", name, " is complete but pending"));
    }
    if (entry->known != nullptr &&
        (entry->known->pending != entry.get() || !SameCall(entry->known->spec, entry->spec))) {
      return absl::InternalError(absl::StrCat("tensor ", name, " is another one than its slot"));
    }
    if (!entry->spec.group.empty()) ++grouped;
    if (entry->id <= last_stalled_id_) ++stalled;
    bytes += entry->cost_bytes;
  }
  COORDD_RETURN_IF_ERROR(CheckBundles());
  for (const auto& [name, group] : groups_) {
    COORDD_RETURN_IF_ERROR(CheckGroupConsistency(name, group));
    grouped -= group.tensors.size();
    bytes += group.cost_bytes;
  }
  if (grouped != 0) return absl::InternalError("grouped tensors are in no group");
  if (bytes != state_bytes_) return absl::InternalError("the state's size is miscounted");
  if (stalled != stalled_) return absl::InternalError("stalled tensors are miscounted");
  if (counted_.pending != pending() || counted_.tombstones != tombstones() ||
      counted_.state_bytes != state_bytes_ + tombstones_.state_bytes() ||
      counted_.stalled != stalled_ || !joined_.CountsAreRight()) {
    return absl::InternalError("the totals are out of date");
  }
  return tombstones_.CheckConsistency();
}

absl::Status ReadinessTable::CheckBundles() const {
  size_t bundled = 0;
  for (const auto& [name, entry] : entries_) bundled += entry->bundle != nullptr ? 1 : 0;
  for (size_t i = 0; i < bundles_.size(); ++i) {
    const Bundle& bundle = *bundles_[i];
    for (const Entry* tensor : bundle.tensors) {
      if (tensor->bundle != &bundle || tensor->known == nullptr || !tensor->spec.group.empty())
        return absl::InternalError("a bundle has a tensor that is no part of it");
    }
    if (bundle.at != i || !joined_.empty()) return absl::InternalError("a bundle is out of place");
    bundled -= bundle.tensors.size();
  }
  if (bundled != 0) return absl::InternalError("a tensor's bundle does not know it");
  return absl::OkStatus();
}

absl::Status ReadinessTable::CheckGroupConsistency(absl::string_view name,
                                                   const Group& group) const {
  int32_t complete = 0;
  std::vector<int32_t> named(group.named_by.size());
  for (const Entry* member : group.tensors) {
    if (IsComplete(*member)) ++complete;
    for (Rank rank : In(*member).Ranks()) ++named[Index(rank)];
  }
  if (group.tensors.empty() || static_cast<int32_t>(group.tensors.size()) > group.size ||
      complete != group.complete || complete == group.size || named != group.named_by) {
    return absl::InternalError(absl::StrCat("group ", name, " miscounts its tensors"));
  }
  return absl::OkStatus();
}

}  // namespace coordd
