// Reports that several ranks make together.
#include <algorithm>
#include <cmath>
#include <vector>

#include "server/generation/readiness_table.h"

namespace coordd {

bool ReadinessTable::CanShare(const Reporters& reporters, const Known& known) const {
  if (tombstones_.size() > 0 || !joined_.empty() || !known.spec.group.empty()) return false;
  if (known.pending == nullptr) return !entries_.contains(known.spec.name);
  return !In(*known.pending).ContainsAnyOf(reporters.slice);
}

bool ReadinessTable::HasRoomFor(int64_t tensors) const {
  return totals_.pending + totals_.tombstones + tensors <= bounds_.max_pending &&
         totals_.state_bytes < bounds_.max_state_bytes / 2;
}

bool ReadinessTable::ReportPending(Rank rank, Known& known, std::vector<FailedTensor>& failed) {
  Entry* entry = known.pending;
  if (entry == nullptr || tombstones_.size() > 0 || !entry->spec.group.empty() ||
      In(*entry).Contains(rank)) {
    return false;
  }
  Alone(*entry).own.Insert(rank);
  entry->max_bytes = std::max(entry->max_bytes, known.bytes);
  entry->sum_bytes += std::min<int64_t>(known.bytes, kMaxTensorBytes);
  if (!entry->own.full()) return true;
  Settle(*entry, failed);
  Account();
  return true;
}

void ReadinessTable::ReportShared(const Reporters& reporters, Known& known, absl::Time now,
                                  std::vector<FailedTensor>& failed) {
  size_t reported = 0;
  // The first one makes it what is pending; where there is no room, each hears of it.
  while (known.pending == nullptr && reported < reporters.ranks.size())
    ReportKnown(reporters.ranks[reported++], known, now, failed);
  const size_t more = reporters.ranks.size() - reported;
  if (more == 0) return;
  Entry& entry = Alone(*known.pending);
  entry.own.InsertAll(reporters.slice);
  entry.max_bytes = std::max(entry.max_bytes, known.bytes);
  entry.sum_bytes += static_cast<int64_t>(more) * std::min<int64_t>(known.bytes, kMaxTensorBytes);
  if (!entry.own.full()) return;
  Settle(entry, failed);
  Account();
}

absl::Duration ReadinessTable::DelayOf(const Known& known, absl::Time now) {
  return now - known.pending->first_report;
}

// As MarkIn, so many times at once.
void ReadinessTable::NoteLag(absl::Span<const Rank> ranks, absl::Duration delay, int64_t tensors) {
  if (tensors == 0) return;
  const double kept = std::pow(1.0 - 1.0 / static_cast<double>(ReadinessTotals::kLagDivisor),
                               static_cast<double>(tensors));
  const auto target = static_cast<double>(absl::ToInt64Nanoseconds(delay));
  for (Rank rank : ranks) {
    absl::Duration& lag = totals_.lag[static_cast<size_t>(rank.value)];
    const auto before = static_cast<double>(absl::ToInt64Nanoseconds(lag));
    lag = absl::Nanoseconds(static_cast<int64_t>(target + (before - target) * kept));
  }
}

}  // namespace coordd
