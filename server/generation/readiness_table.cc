#include "server/generation/readiness_table.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/duration_text.h"

namespace coordd {
namespace {

bool IsGrouped(const TensorSpec& spec) { return !spec.group.empty(); }

}  // namespace

ReadinessTable::ReadinessTable(ProcessSetId process_set, MemberList members,
                               const ReadinessBounds& bounds, ReadinessTotals& totals)
    : process_set_(process_set),
      members_(std::move(members)),
      bounds_(bounds),
      totals_(totals),
      joined_(members_),
      entries_(members_, KeptNames::Hold(totals.kept)),
      bundles_(members_, entries_),
      tombstones_(members_) {}

ReadinessTable::~ReadinessTable() { ForgetAll(); }

void ReadinessTable::Report(Rank rank, const TensorSpec& spec, absl::Time now,
                            std::vector<FailedTensor>& failed) {
  if (const std::optional<TensorFault> fault =
          tombstones_.Take(rank, spec.name, spec.group, spec.group_size)) {
    failed.push_back({process_set_, spec.name, *fault, {rank}});
    Account();
    return;
  }
  Entry* entry = entries_.Find(spec.name);
  if (entry == nullptr) {
    if (const absl::Status status = CheckGroup(spec); !status.ok()) {
      FailReport(rank, spec, {status, rank}, failed);
      Account();
      return;
    }
    if (!HasRoom()) {
      const absl::Status full =
          absl::ResourceExhaustedError(absl::StrCat("tensor ", spec.name, ": ", totals_.pending,
                                                    " tensors of this job are pending "
                                                    "already, more than this coordd keeps"));
      failed.push_back({process_set_, spec.name, {full, rank}, {rank}});
      return;
    }
    entry = AddEntry(rank, spec, now);
  } else if (entry->in().Contains(rank)) {
    const absl::Status again =
        absl::AlreadyExistsError(absl::StrCat("tensor ", spec.name, ": rank ", ToInt(rank),
                                              " submitted it again while it was still pending"));
    FailReport(rank, spec, {again, rank}, failed);
    Account();
    return;
  } else if (absl::Status same = CheckSame(entry->spec, entry->first_rank, spec, rank);
             !same.ok()) {
    FailReport(rank, spec, {std::move(same), kNobody}, failed);
    Account();
    return;
  }
  MarkIn(Alone(*entry), rank, SizeBytes(spec), now);
  Settle(*entry, failed);
  Account();
}

bool ReadinessTable::ReportSame(Rank rank, absl::string_view name,
                                absl::FunctionRef<bool(const TensorSpec&)> same, absl::Time now,
                                std::vector<FailedTensor>& failed) {
  Entry* entry = entries_.Find(name);
  if (entry == nullptr || tombstones_.size() > 0 || entry->in().Contains(rank) ||
      !same(entry->spec)) {
    return false;
  }
  MarkIn(Alone(*entry), rank, SizeBytes(entry->spec), now);
  Settle(*entry, failed);
  Account();
  return true;
}

void ReadinessTable::ReportKnown(Rank rank, Known& known, absl::Time now,
                                 std::vector<FailedTensor>& failed) {
  if (known.pending != nullptr && tombstones_.size() == 0 && !known.pending->in().Contains(rank)) {
    Entry& entry = Alone(*known.pending);
    MarkIn(entry, rank, known.bytes, now);
    Settle(entry, failed);
    Account();
    return;
  }
  Report(rank, known.spec, now, failed);
  Entry* entry = entries_.Find(known.spec.name);
  if (entry == nullptr || entry->known != nullptr || !SameCall(entry->spec, known.spec)) return;
  entry->known = &known;
  known.pending = entry;
}

void ReadinessTable::Forget(Known& known) {
  if (known.pending != nullptr) ReadinessEntries::Unlink(Alone(*known.pending));
}

void ReadinessTable::Reject(Rank rank, const TensorSpec& spec, const absl::Status& why,
                            std::vector<FailedTensor>& failed) {
  if (const std::optional<TensorFault> fault =
          tombstones_.Take(rank, spec.name, spec.group, spec.group_size)) {
    failed.push_back({process_set_, spec.name, *fault, {rank}});
  } else {
    FailReport(rank, spec, {why, rank}, failed);
  }
  Account();
}

void ReadinessTable::Withdraw(Rank rank, absl::string_view name, absl::string_view reason,
                              std::vector<FailedTensor>& failed) {
  Entry* entry = entries_.Find(name);
  if (entry == nullptr || !entry->in().Contains(rank)) return;
  // Who was missing is what the rank that gave up wants to know.
  const PendingTensor pending = Describe(*entry);
  const absl::Status status = absl::CancelledError(absl::StrCat(
      "tensor ", name, ": rank ", ToInt(rank), " withdrew it", reason.empty() ? "" : ": ", reason,
      "; not submitted by ", RanksString(pending.missing, pending.missing_count),
      WaitsInstead(*entry, pending)));
  FailEntry(*entry, {status, rank}, failed);
  Account();
}

void ReadinessTable::Join(Rank rank, std::vector<FailedTensor>& failed) {
  tombstones_.Forgive(rank);
  bundles_.DissolveAll();
  joined_.Insert(rank);
  std::vector<int64_t> ids;
  for (const auto& [id, entry] : entries_.by_age()) ids.push_back(id);
  for (int64_t id : ids) {
    const auto it = entries_.by_age().find(id);  // a group takes others with it
    if (it != entries_.by_age().end() && !it->second->in().Contains(rank))
      Settle(*it->second, failed);
  }
  Account();
}

void ReadinessTable::EndJoin() {
  if (joined_.empty()) return;
  joined_ = RankSet(members_);
  for (auto& [name, group] : groups_) {
    group.complete = 0;
    for (const Entry* tensor : group.tensors) group.complete += tensor->in().full() ? 1 : 0;
  }
}

bool ReadinessTable::IsComplete(const Entry& entry) const {
  const RankSet& in = entry.in();
  return in.full() || (!joined_.empty() && in.CoversAllWith(joined_));
}

std::optional<TensorFault> ReadinessTable::AsksJoined(const Entry& entry) const {
  if (joined_.empty()) return std::nullopt;
  const TensorSpec& spec = entry.spec;
  auto is_gone = [&](Rank rank) {
    return members_.Contains(rank) && joined_.Contains(rank) && !entry.in().Contains(rank);
  };
  auto fault = [&](Rank rank, absl::string_view role) {
    return TensorFault{absl::FailedPreconditionError(
                           absl::StrCat("tensor ", spec.name, ": rank ", ToInt(rank), ", ", role,
                                        ", has joined: it has no more data")),
                       rank};
  };
  if (HasRoot(spec.kind) && is_gone(Rank{spec.root_rank})) {
    return fault(Rank{spec.root_rank}, absl::StrCat("the root of this ", Name(spec.kind)));
  }
  if (IsPairwise(spec.kind) && is_gone(Rank{spec.peer_rank})) {
    const bool sends = spec.kind == CollectiveKind::kSend;
    return fault(Rank{spec.peer_rank},
                 absl::StrCat(sends ? "to which rank " : "from which rank ",
                              ToInt(entry.first_rank), sends ? " sends it" : " receives it"));
  }
  return std::nullopt;
}

void ReadinessTable::Settle(Entry& entry, std::vector<FailedTensor>& failed) {
  if (const std::optional<TensorFault> fault = AsksJoined(entry)) {
    FailEntry(entry, *fault, failed);
  } else if (IsComplete(entry)) {
    Complete(entry);
  }
}

void ReadinessTable::FailOlderThan(absl::Time now, absl::Duration age,
                                   std::vector<FailedTensor>& failed) {
  // One at a time: a group takes others with it.
  while (!entries_.empty() && entries_.by_age().begin()->second->first_report + age <= now) {
    Entry& entry = *entries_.by_age().begin()->second;
    const PendingTensor pending = Describe(entry);
    const absl::Status status = absl::DeadlineExceededError(
        absl::StrCat("tensor ", entry.spec.name, ": submitted by ",
                     RanksString(pending.ready, pending.ready_count), ", but not by ",
                     RanksString(pending.missing, pending.missing_count), " within ",
                     DurationText(age), WaitsInstead(entry, pending)));
    const Rank blamed = pending.missing_count == 1 ? pending.missing.front() : kNobody;
    FailEntry(entry, {status, blamed}, failed);
  }
  Account();
}

std::vector<ReadyTensor> ReadinessTable::TakeReady() {
  std::vector<ReadyTensor> taken;
  taken.swap(ready_);
  return taken;
}

void ReadinessTable::ForgetAll() {
  bundles_.Clear();
  entries_.Clear();
  groups_.clear();
  tombstones_ = Tombstones(members_);
  ready_.clear();
  group_bytes_ = 0;
  Account();
}

void ReadinessTable::Account() {
  auto count = [](int64_t now, int64_t& counted, int64_t& total) {
    total += now - counted;
    counted = now;
  };
  count(pending(), counted_.pending, totals_.pending);
  count(tombstones(), counted_.tombstones, totals_.tombstones);
  count(state_bytes(), counted_.state_bytes, totals_.state_bytes);
  totals_.share.Set(totals_.state_bytes);
  count(stalled(), counted_.stalled, totals_.stalled);
}

bool ReadinessTable::HasRoom() const {
  const int64_t others =
      totals_.pending + totals_.tombstones - counted_.pending - counted_.tombstones;
  const int64_t others_bytes = totals_.state_bytes - counted_.state_bytes;
  return others + pending() + tombstones_.size() < bounds_.max_pending &&
         others_bytes + state_bytes() < bounds_.max_state_bytes && totals_.share.HasRoomFor(1);
}

// Whether a new tensor fits the group that it names.
absl::Status ReadinessTable::CheckGroup(const TensorSpec& spec) const {
  if (!IsGrouped(spec)) return absl::OkStatus();
  const auto it = groups_.find(spec.group);
  if (it == groups_.end() || it->second.tensors.empty()) return absl::OkStatus();
  const TensorGroup& group = it->second;
  const Entry& first = *group.tensors.front();
  if (group.size != spec.group_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", spec.name, ": group ", spec.group, " has ", spec.group_size,
                     " tensors, but tensor ", first.spec.name, " says that it has ", group.size));
  }
  if (static_cast<int32_t>(group.tensors.size()) == group.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", spec.name, ": group ", spec.group, " has all its ", group.size,
                     " tensors already, the first is ", first.spec.name));
  }
  return absl::OkStatus();
}

// With nobody in. REQUIRES: none of this name is there.
ReadinessTable::Entry* ReadinessTable::AddEntry(Rank rank, const TensorSpec& spec, absl::Time now) {
  Entry* const added = entries_.Add(rank, spec, now);
  if (IsGrouped(spec)) GetOrAddGroup(spec.group, spec.group_size).tensors.push_back(added);
  return added;
}

ReadinessTable::TensorGroup& ReadinessTable::GetOrAddGroup(const std::string& name, int32_t size) {
  const auto [it, is_new] = groups_.try_emplace(name);
  if (is_new) {
    it->second.size = size;
    it->second.named_by.resize(static_cast<size_t>(members_.size()));
    it->second.cost_bytes =
        ReadinessEntries::kEntryCostBytes + int64_t{members_.size()} * int64_t{sizeof(int32_t)};
    group_bytes_ += it->second.cost_bytes;
  }
  return it->second;
}

void ReadinessTable::MarkIn(Entry& entry, Rank rank, int64_t bytes, absl::Time now) {
  COORDD_CHECK(entry.own.Insert(rank));
  if (IsGrouped(entry.spec)) ++groups_[entry.spec.group].named_by[Index(rank)];
  entry.max_bytes = std::max(entry.max_bytes, bytes);
  entry.sum_bytes += std::min(bytes, kMaxTensorBytes);
  absl::Duration& lag = totals_.lag[static_cast<size_t>(rank.value)];
  // In nanoseconds: a division of durations costs as much as the rest of this.
  lag += absl::Nanoseconds(absl::ToInt64Nanoseconds(now - entry.first_report - lag) /
                           ReadinessTotals::kLagDivisor);
}

void ReadinessTable::Complete(Entry& entry) {
  if (!IsGrouped(entry.spec)) {
    MoveToReady(entry);
    return;
  }
  const auto it = groups_.find(entry.spec.group);
  TensorGroup& group = it->second;
  if (++group.complete < group.size) return;
  for (Entry* member : group.tensors) MoveToReady(*member);
  group_bytes_ -= group.cost_bytes;
  groups_.erase(it);
}

void ReadinessTable::MoveToReady(Entry& entry) {
  const bool gathers = entry.spec.kind == CollectiveKind::kAllgather;
  const int64_t bytes = gathers ? entry.sum_bytes : entry.max_bytes;
  const bool for_joined = !entry.in().full();
  const int64_t slot = entry.known != nullptr ? entry.known->slot : 0;
  std::unique_ptr<Entry> done = entries_.Take(entry);
  ready_.push_back({std::move(done->spec), bytes, done->first_report, for_joined, slot});
  entries_.Keep(std::move(done));
}

void ReadinessTable::Reuse(std::vector<ReadyTensor> planned) {
  for (ReadyTensor& tensor : planned)
    if (!entries_.Reuse(std::move(tensor.spec))) break;
  planned.clear();
  if (ready_.empty()) ready_.swap(planned);
}

void ReadinessTable::FailReport(Rank rank, const TensorSpec& spec, const TensorFault& fault,
                                std::vector<FailedTensor>& failed) {
  std::string group_of_entry;
  if (Entry* entry = entries_.Find(spec.name); entry != nullptr) {
    group_of_entry = entry->spec.group;
    const bool is_first = Alone(*entry).own.Insert(rank);
    if (is_first && IsGrouped(entry->spec) && spec.group == group_of_entry) {
      ++groups_[group_of_entry].named_by[Index(rank)];
    }
    FailEntry(*entry, fault, failed);
    if (!is_first)
      failed.push_back({process_set_, spec.name, fault, {rank}});  // two reports, two answers
  } else {
    failed.push_back({process_set_, spec.name, fault, {rank}});
    if (!IsGrouped(spec) && HasRoom()) {
      RankSet told(members_);
      told.Insert(rank);
      tombstones_.AddTensor(spec.name, fault, Owed(told));
    }
  }
  if (!IsGrouped(spec) || spec.group == group_of_entry || spec.group_size < 1) return;
  if (!groups_.contains(spec.group) && !HasRoom()) return;
  TensorGroup& group = GetOrAddGroup(spec.group, spec.group_size);
  int32_t& named = group.named_by[Index(rank)];
  GroupDebt owed{spec.group_size - 1, spec.group_size};  // of a group that is another one here
  if (spec.group_size == group.size) {
    named = std::min(named + 1, group.size);
    owed.count = group.size - named;
  }
  FailGroup(groups_.find(spec.group), spec.name, fault, failed, {rank, owed});
}

void ReadinessTable::FailEntry(Entry& entry, const TensorFault& fault,
                               std::vector<FailedTensor>& failed) {
  if (IsGrouped(entry.spec)) {
    FailGroup(groups_.find(entry.spec.group), std::string(entry.spec.name), fault, failed, {});
    return;
  }
  const RankSet& in = Alone(entry).own;
  failed.push_back({process_set_, entry.spec.name, fault, in.Ranks()});
  tombstones_.AddTensor(entry.spec.name, fault, Owed(in));
  entries_.Erase(entry);
}

void ReadinessTable::FailGroup(TensorGroups::iterator it, absl::string_view culprit,
                               const TensorFault& fault, std::vector<FailedTensor>& failed,
                               const Debtor& debtor) {
  const std::string name = it->first;
  TensorGroup group = std::move(it->second);
  group_bytes_ -= group.cost_bytes;
  groups_.erase(it);
  const TensorFault with_group{
      absl::Status(fault.status.code(),
                   absl::StrCat("group ", name, " fails as a whole: ", fault.status.message())),
      fault.blamed};
  for (Entry* member : group.tensors) {
    const bool is_culprit = member->spec.name == culprit;
    failed.push_back(
        {process_set_, member->spec.name, is_culprit ? fault : with_group, member->in().Ranks()});
    entries_.Erase(*member);
  }
  std::vector<GroupDebt> owed;
  for (const int32_t named : group.named_by) owed.push_back({group.size - named, group.size});
  if (debtor.rank != kNobody) owed[Index(debtor.rank)] = debtor.owed;
  for (Rank rank : joined_.Ranks()) owed[Index(rank)].count = 0;
  tombstones_.AddGroup(name, with_group, std::move(owed));
}

// --- Reports that several ranks make together ---

bool ReadinessTable::BeginBundle(absl::Span<Known* const> tensors, const Slots& slots,
                                 Rank first_rank, absl::Time now) {
  return tombstones_.size() == 0 && joined_.empty() &&
         HasRoomFor(static_cast<int64_t>(tensors.size())) &&
         bundles_.Begin(tensors, slots, first_rank, now);
}

ReadinessTable::Bundle* ReadinessTable::BundleOf(const Known& first, const Slots& slots) const {
  return tombstones_.size() > 0 ? nullptr : bundles_.Find(first, slots);
}

std::optional<int64_t> ReadinessTable::ReportBundle(const Known& first, const Slots& slots,
                                                    const Reporters& reporters, absl::Time now) {
  Bundle* bundle = BundleOf(first, slots);
  if (bundle == nullptr || bundle->in.ContainsAnyOf(reporters.slice)) return std::nullopt;
  bundle->in.InsertAll(reporters.slice);
  return CountIn(*bundle, reporters.ranks, now);
}

std::optional<int64_t> ReadinessTable::ReportBundle(const Known& first, const Slots& slots,
                                                    Rank rank, absl::Time now) {
  Bundle* bundle = BundleOf(first, slots);
  if (bundle == nullptr || !bundle->in.Insert(rank)) return std::nullopt;
  return CountIn(*bundle, absl::MakeConstSpan(&rank, 1), now);
}

// The ranks have just come in.
int64_t ReadinessTable::CountIn(Bundle& bundle, absl::Span<const Rank> ranks, absl::Time now) {
  const auto tensors = static_cast<int64_t>(bundle.tensors.size());
  NoteLag(ranks, now - bundle.tensors.front()->first_report, tensors);
  if (bundle.in.full()) {
    TensorBundles::SumUp(bundle);
    for (Entry* tensor : bundle.tensors) MoveToReady(*tensor);
    bundles_.Drop(bundle);
  }
  Account();
  return tensors;
}

bool ReadinessTable::CanShare(const Reporters& reporters, const Known& known) const {
  if (tombstones_.size() > 0 || !joined_.empty() || !known.spec.group.empty()) return false;
  if (known.pending == nullptr) return entries_.Find(known.spec.name) == nullptr;
  return !known.pending->in().ContainsAnyOf(reporters.slice);
}

bool ReadinessTable::HasRoomFor(int64_t tensors) const {
  return totals_.pending + totals_.tombstones + tensors <= bounds_.max_pending &&
         totals_.state_bytes < bounds_.max_state_bytes / 2 &&
         totals_.share.HasRoomFor(totals_.state_bytes);
}

bool ReadinessTable::ReportPending(Rank rank, Known& known, std::vector<FailedTensor>& failed) {
  Entry* entry = known.pending;
  if (entry == nullptr || tombstones_.size() > 0 || !entry->spec.group.empty() ||
      entry->in().Contains(rank)) {
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
