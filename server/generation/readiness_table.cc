#include "server/generation/readiness_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/duration_text.h"

namespace coordd {
namespace {

constexpr int64_t kEntryCostBytes = 256;  // containers, allocations
constexpr int64_t kMaxSpareBytes = 1 << 20;

bool IsGrouped(const TensorSpec& spec) { return !spec.group.empty(); }

}  // namespace

ReadinessTable::ReadinessTable(ProcessSetId process_set, MemberList members,
                               const ReadinessBounds& bounds, ReadinessTotals& totals)
    : process_set_(process_set),
      members_(std::move(members)),
      bounds_(bounds),
      totals_(totals),
      joined_(members_),
      tombstones_(members_) {}

ReadinessTable::~ReadinessTable() { ForgetAll(); }

void ReadinessTable::Report(Rank rank, const TensorSpec& spec, absl::Time now,
                            std::vector<FailedTensor>& failed) {
  if (const std::optional<TensorFault> fault = tombstones_.Take(rank, spec.name, spec.group)) {
    failed.push_back({process_set_, spec.name, *fault, {rank}});
    Account();
    return;
  }
  Entry* entry = FindEntry(spec.name);
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
  } else if (In(*entry).Contains(rank)) {
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
  Entry* entry = FindEntry(name);
  if (entry == nullptr || tombstones_.size() > 0 || In(*entry).Contains(rank) ||
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
  if (known.pending != nullptr && tombstones_.size() == 0 && !In(*known.pending).Contains(rank)) {
    Entry& entry = Alone(*known.pending);
    MarkIn(entry, rank, known.bytes, now);
    Settle(entry, failed);
    Account();
    return;
  }
  Report(rank, known.spec, now, failed);
  Entry* entry = FindEntry(known.spec.name);
  if (entry == nullptr || entry->known != nullptr || !SameCall(entry->spec, known.spec)) return;
  entry->known = &known;
  known.pending = entry;
}

void ReadinessTable::Forget(Known& known) {
  if (known.pending != nullptr) Unlink(Alone(*known.pending));
}

void ReadinessTable::Unlink(Entry& entry) {
  if (entry.known != nullptr) std::exchange(entry.known, nullptr)->pending = nullptr;
}

void ReadinessTable::Reject(Rank rank, const TensorSpec& spec, const absl::Status& why,
                            std::vector<FailedTensor>& failed) {
  if (const std::optional<TensorFault> fault = tombstones_.Take(rank, spec.name, spec.group)) {
    failed.push_back({process_set_, spec.name, *fault, {rank}});
  } else {
    FailReport(rank, spec, {why, rank}, failed);
  }
  Account();
}

void ReadinessTable::Withdraw(Rank rank, absl::string_view name, absl::string_view reason,
                              std::vector<FailedTensor>& failed) {
  Entry* entry = FindEntry(name);
  if (entry == nullptr || !In(*entry).Contains(rank)) return;
  // Who was missing is what the rank that gave up wants to know.
  const PendingTensor pending = Describe(*entry);
  const absl::Status status = absl::CancelledError(absl::StrCat(
      "tensor ", name, ": rank ", ToInt(rank), " withdrew it", reason.empty() ? "" : ": ", reason,
      "; not submitted by ", RanksString(pending.missing, pending.missing_count)));
  FailEntry(*entry, {status, rank}, failed);
  Account();
}

void ReadinessTable::Join(Rank rank, std::vector<FailedTensor>& failed) {
  tombstones_.Forgive(rank);
  while (!bundles_.empty()) Dissolve(*bundles_.back());
  joined_.Insert(rank);
  std::vector<int64_t> ids;
  for (const auto& [id, entry] : by_age_) ids.push_back(id);
  for (int64_t id : ids) {
    const auto it = by_age_.find(id);  // a group takes others with it
    if (it != by_age_.end() && !In(*it->second).Contains(rank)) Settle(*it->second, failed);
  }
  Account();
}

void ReadinessTable::EndJoin() {
  if (joined_.empty()) return;
  joined_ = RankSet(members_);
  for (auto& [name, group] : groups_) {
    group.complete = 0;
    for (const Entry* tensor : group.tensors) group.complete += In(*tensor).full() ? 1 : 0;
  }
}

bool ReadinessTable::IsComplete(const Entry& entry) const {
  const RankSet& in = In(entry);
  return in.full() || (!joined_.empty() && in.CoversAllWith(joined_));
}

std::optional<TensorFault> ReadinessTable::AsksJoined(const Entry& entry) const {
  if (joined_.empty()) return std::nullopt;
  const TensorSpec& spec = entry.spec;
  auto is_gone = [&](Rank rank) {
    return members_.Contains(rank) && joined_.Contains(rank) && !In(entry).Contains(rank);
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
  while (!by_age_.empty() && by_age_.begin()->second->first_report + age <= now) {
    Entry& entry = *by_age_.begin()->second;
    const PendingTensor pending = Describe(entry);
    const absl::Status status = absl::DeadlineExceededError(absl::StrCat(
        "tensor ", entry.spec.name, ": submitted by ",
        RanksString(pending.ready, pending.ready_count), ", but not by ",
        RanksString(pending.missing, pending.missing_count), " within ", DurationText(age)));
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
  for (const auto& [id, entry] : by_age_) Unlink(*entry);
  bundles_.clear();
  entries_.clear();
  by_age_.clear();
  spare_entries_.clear();
  spare_bundles_.clear();
  spare_specs_.clear();
  groups_.clear();
  tombstones_ = Tombstones(members_);
  ready_.clear();
  state_bytes_ = 0;
  stalled_ = 0;
  Account();
}

void ReadinessTable::Account() {
  auto count = [](int64_t now, int64_t& counted, int64_t& total) {
    total += now - counted;
    counted = now;
  };
  count(pending(), counted_.pending, totals_.pending);
  count(tombstones(), counted_.tombstones, totals_.tombstones);
  count(state_bytes_ + tombstones_.state_bytes(), counted_.state_bytes, totals_.state_bytes);
  count(stalled_, counted_.stalled, totals_.stalled);
}

ReadinessTable::Entry* ReadinessTable::FindEntry(absl::string_view name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : it->second.get();
}

bool ReadinessTable::HasRoom() const {
  const int64_t others =
      totals_.pending + totals_.tombstones - counted_.pending - counted_.tombstones;
  const int64_t others_bytes = totals_.state_bytes - counted_.state_bytes;
  return others + pending() + tombstones_.size() < bounds_.max_pending &&
         others_bytes + state_bytes_ + tombstones_.state_bytes() < bounds_.max_state_bytes;
}

// Whether a new tensor fits the group that it names.
absl::Status ReadinessTable::CheckGroup(const TensorSpec& spec) const {
  if (!IsGrouped(spec)) return absl::OkStatus();
  const auto it = groups_.find(spec.group);
  if (it == groups_.end() || it->second.tensors.empty()) return absl::OkStatus();
  const Group& group = it->second;
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

std::unique_ptr<ReadinessTable::Entry> ReadinessTable::NewEntry(const TensorSpec& spec) {
  std::unique_ptr<Entry> entry;
  if (spare_entries_.empty()) {
    entry = std::make_unique<Entry>(members_);
  } else {
    entry = std::move(spare_entries_.back());
    spare_entries_.pop_back();
  }
  if (!spare_specs_.empty()) {
    entry->spec = std::move(spare_specs_.back());
    spare_specs_.pop_back();
  }
  entry->spec = spec;
  return entry;
}

ReadinessTable::Entry* ReadinessTable::AddEntry(Rank rank, const TensorSpec& spec, absl::Time now) {
  std::unique_ptr<Entry> entry = NewEntry(spec);
  Entry& added = *entry;
  if (!entries_.try_emplace(added.spec.name, std::move(entry)).second) return nullptr;
  added.id = next_id_++;
  added.first_rank = rank;
  added.first_report = now;
  added.cost_bytes = kEntryCostBytes + added.own.size_bytes() +
                     static_cast<int64_t>(2 * spec.name.size() + spec.group.size());
  state_bytes_ += added.cost_bytes;
  if (IsGrouped(spec)) GetOrAddGroup(spec.group, spec.group_size).tensors.push_back(&added);
  if (added.age.empty()) {
    by_age_.emplace_hint(by_age_.end(), added.id, &added);
  } else {
    added.age.key() = added.id;
    by_age_.insert(by_age_.end(), std::move(added.age));
  }
  return &added;
}

ReadinessTable::Group& ReadinessTable::GetOrAddGroup(const std::string& name, int32_t size) {
  const auto [it, is_new] = groups_.try_emplace(name);
  if (is_new) {
    it->second.size = size;
    it->second.named_by.resize(static_cast<size_t>(members_.size()));
    it->second.cost_bytes = kEntryCostBytes + int64_t{members_.size()} * int64_t{sizeof(int32_t)};
    state_bytes_ += it->second.cost_bytes;
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
  Group& group = it->second;
  if (++group.complete < group.size) return;
  for (Entry* member : group.tensors) MoveToReady(*member);
  state_bytes_ -= group.cost_bytes;
  groups_.erase(it);
}

void ReadinessTable::MoveToReady(Entry& entry) {
  const bool gathers = entry.spec.kind == CollectiveKind::kAllgather;
  const int64_t bytes = gathers ? entry.sum_bytes : entry.max_bytes;
  const bool for_joined = !In(entry).full();
  const int64_t slot = entry.known != nullptr ? entry.known->slot : 0;
  std::unique_ptr<Entry> done = TakeOut(entry);
  ready_.push_back({std::move(done->spec), bytes, done->first_report, for_joined, slot});
  Keep(std::move(done));
}

void ReadinessTable::Erase(Entry& entry) { Keep(TakeOut(entry)); }

std::unique_ptr<ReadinessTable::Entry> ReadinessTable::TakeOut(Entry& entry) {
  Unlink(entry);
  state_bytes_ -= entry.cost_bytes;
  if (entry.id <= last_stalled_id_) --stalled_;
  entry.age = by_age_.extract(entry.id);
  const auto at = entries_.find(entry.spec.name);
  std::unique_ptr<Entry> taken = std::move(at->second);
  entries_.erase(at);
  return taken;
}

void ReadinessTable::Keep(std::unique_ptr<Entry> spare) {
  const int64_t each = kEntryCostBytes + spare->own.size_bytes();
  if (static_cast<int64_t>(spare_entries_.size()) >= kMaxSpareBytes / each) return;
  spare->own.Clear();
  spare->bundle = nullptr;
  spare->max_bytes = spare->sum_bytes = 0;
  spare_entries_.push_back(std::move(spare));
}

void ReadinessTable::Reuse(std::vector<ReadyTensor> planned) {
  for (ReadyTensor& tensor : planned) {
    if (spare_specs_.size() >= spare_entries_.size()) break;
    spare_specs_.push_back(std::move(tensor.spec));
  }
  planned.clear();
  if (ready_.empty()) ready_.swap(planned);
}

void ReadinessTable::FailReport(Rank rank, const TensorSpec& spec, const TensorFault& fault,
                                std::vector<FailedTensor>& failed) {
  std::string group_of_entry;
  if (Entry* entry = FindEntry(spec.name); entry != nullptr) {
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
  Group& group = GetOrAddGroup(spec.group, spec.group_size);
  int32_t& named = group.named_by[Index(rank)];
  named = std::min(named + 1, group.size);
  FailGroup(groups_.find(spec.group), spec.name, fault, failed);
}

void ReadinessTable::FailEntry(Entry& entry, const TensorFault& fault,
                               std::vector<FailedTensor>& failed) {
  if (IsGrouped(entry.spec)) {
    FailGroup(groups_.find(entry.spec.group), std::string(entry.spec.name), fault, failed);
    return;
  }
  const RankSet& in = Alone(entry).own;
  failed.push_back({process_set_, entry.spec.name, fault, in.Ranks()});
  tombstones_.AddTensor(entry.spec.name, fault, Owed(in));
  Erase(entry);
}

void ReadinessTable::FailGroup(Groups::iterator it, absl::string_view culprit,
                               const TensorFault& fault, std::vector<FailedTensor>& failed) {
  const std::string name = it->first;
  Group group = std::move(it->second);
  state_bytes_ -= group.cost_bytes;
  groups_.erase(it);
  const TensorFault with_group{
      absl::Status(fault.status.code(),
                   absl::StrCat("group ", name, " fails as a whole: ", fault.status.message())),
      fault.blamed};
  for (Entry* member : group.tensors) {
    const bool is_culprit = member->spec.name == culprit;
    failed.push_back(
        {process_set_, member->spec.name, is_culprit ? fault : with_group, In(*member).Ranks()});
    Erase(*member);
  }
  for (int32_t& named : group.named_by) named = group.size - named;
  for (Rank rank : joined_.Ranks()) group.named_by[Index(rank)] = 0;
  tombstones_.AddGroup(name, with_group, std::move(group.named_by));
}

}  // namespace coordd
