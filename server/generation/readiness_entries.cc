#include "server/generation/readiness_entries.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr int64_t kMaxSpareBytes = 1 << 20;

}  // namespace

ReadinessEntry* ReadinessEntries::Find(absl::string_view name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : it->second.get();
}

std::unique_ptr<ReadinessEntry> ReadinessEntries::New(const TensorSpec& spec) {
  std::unique_ptr<ReadinessEntry> entry;
  if (spare_entries_.empty()) {
    entry = std::make_unique<ReadinessEntry>(members_);
  } else {
    entry = std::move(spare_entries_.back());
    spare_entries_.pop_back();
    spares_.Set(spares_.bytes() - CostOf(*entry));
  }
  if (!spare_specs_.empty()) {
    entry->spec = std::move(spare_specs_.back());
    spare_specs_.pop_back();
    spares_.Set(spares_.bytes() - KeptNames::CostOf(entry->spec));
  }
  entry->spec = spec;
  return entry;
}

ReadinessEntry* ReadinessEntries::Add(Rank rank, const TensorSpec& spec, absl::Time now) {
  std::unique_ptr<ReadinessEntry> entry = New(spec);
  ReadinessEntry& added = *entry;
  if (!entries_.try_emplace(added.spec.name, std::move(entry)).second) return nullptr;
  added.id = next_id_++;
  added.first_rank = rank;
  added.first_report = now;
  added.cost_bytes = kEntryCostBytes + added.own.size_bytes() +
                     static_cast<int64_t>(2 * spec.name.size() + spec.group.size());
  state_bytes_ += added.cost_bytes;
  if (added.age.empty()) {
    by_age_.emplace_hint(by_age_.end(), added.id, &added);
  } else {
    added.age.key() = added.id;
    by_age_.insert(by_age_.end(), std::move(added.age));
  }
  return &added;
}

void ReadinessEntries::Unlink(ReadinessEntry& entry) {
  if (entry.known != nullptr) std::exchange(entry.known, nullptr)->pending = nullptr;
}

std::unique_ptr<ReadinessEntry> ReadinessEntries::Take(ReadinessEntry& entry) {
  Unlink(entry);
  state_bytes_ -= entry.cost_bytes;
  if (entry.id <= last_stalled_id_) --stalled_;
  entry.age = by_age_.extract(entry.id);
  const auto at = entries_.find(entry.spec.name);
  std::unique_ptr<ReadinessEntry> taken = std::move(at->second);
  entries_.erase(at);
  if (entries_.empty() && spares_.is_full()) entries_.rehash(0);
  return taken;
}

void ReadinessEntries::Keep(std::unique_ptr<ReadinessEntry> spare) {
  const int64_t each = CostOf(*spare);
  if (static_cast<int64_t>(spare_entries_.size()) >= kMaxSpareBytes / each) return;
  if (!spares_.Add(each)) return;
  spare->own.Clear();
  spare->bundle = nullptr;
  spare->max_bytes = spare->sum_bytes = 0;
  spare_entries_.push_back(std::move(spare));
}

bool ReadinessEntries::Reuse(TensorSpec&& spec) {
  if (spare_specs_.size() >= spare_entries_.size()) return false;
  if (!spares_.Add(KeptNames::CostOf(spec))) return false;
  spare_specs_.push_back(std::move(spec));
  return true;
}

void ReadinessEntries::Clear() {
  for (const auto& [id, entry] : by_age_) Unlink(*entry);
  entries_.clear();
  by_age_.clear();
  spare_entries_.clear();
  spare_specs_.clear();
  spares_.Set(0);
  state_bytes_ = 0;
  stalled_ = 0;
}

int64_t ReadinessEntries::Free(int64_t most) {
  int64_t freed = 0;
  for (auto it = by_age_.begin(); it != by_age_.end() && freed < most; ++freed) {
    ReadinessEntry& entry = *it->second;
    Unlink(entry);
    state_bytes_ -= entry.cost_bytes;
    if (entry.id <= last_stalled_id_) --stalled_;
    entries_.erase(entries_.find(entry.spec.name));
    it = by_age_.erase(it);
  }
  for (; !spare_entries_.empty() && freed < most; ++freed) spare_entries_.pop_back();
  for (; !spare_specs_.empty() && freed < most; ++freed) spare_specs_.pop_back();
  return freed;
}

int64_t ReadinessEntries::VisitStalled(absl::Time now, absl::Duration age,
                                       absl::FunctionRef<void(const ReadinessEntry&)> visit) {
  int64_t count = 0;
  // Ids follow the first reports, so what is stalled is always a prefix.
  for (auto it = by_age_.upper_bound(last_stalled_id_);
       it != by_age_.end() && it->second->first_report + age <= now; ++it) {
    visit(*it->second);
    last_stalled_id_ = it->first;
    ++count;
  }
  stalled_ += count;
  return count;
}

absl::Time ReadinessEntries::NextStall(absl::Duration warning, absl::Duration abort) const {
  if (by_age_.empty()) return absl::InfiniteFuture();
  absl::Time next = by_age_.begin()->second->first_report + abort;
  const auto fresh = by_age_.upper_bound(last_stalled_id_);
  if (fresh != by_age_.end()) next = std::min(next, fresh->second->first_report + warning);
  return next;
}

void ReadinessEntries::Forgive(absl::Duration gap) {
  for (auto& [id, entry] : by_age_) entry->first_report += gap;
}

absl::Status ReadinessEntries::CheckConsistency() const {
  if (entries_.size() != by_age_.size()) return absl::InternalError("entries and ages differ");
  int64_t bytes = 0;
  int64_t stalled = 0;
  for (const auto& [name, entry] : entries_) {
    const auto aged = by_age_.find(entry->id);
    if (aged == by_age_.end() || aged->second != entry.get() || entry->spec.name != name) {
      return absl::InternalError(absl::StrCat("tensor ", name, " is indexed wrongly"));
    }
    if (entry->known != nullptr &&
        (entry->known->pending != entry.get() || !SameCall(entry->known->spec, entry->spec))) {
      return absl::InternalError(absl::StrCat("tensor ", name, " is another one than its slot"));
    }
    if (entry->id <= last_stalled_id_) ++stalled;
    bytes += entry->cost_bytes;
  }
  if (bytes != state_bytes_) return absl::InternalError("the state's size is miscounted");
  if (stalled != stalled_) return absl::InternalError("stalled tensors are miscounted");
  return absl::OkStatus();
}

}  // namespace coordd
