#include "server/generation/negotiated_sets.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "server/model/graveyard.h"

namespace coordd {
namespace {

bool IsPairwise(const v1::TensorSpec& proto) {
  return proto.kind() == v1::COLLECTIVE_KIND_SEND || proto.kind() == v1::COLLECTIVE_KIND_RECEIVE;
}

}  // namespace

NegotiatedSets::NegotiatedSets(const std::vector<SessionId>& by_rank, const Options& options)
    : by_rank_(by_rank),
      options_(options),
      sets_(std::make_shared<ProcessSets>(static_cast<int32_t>(by_rank.size()), options.budget)),
      join_(sets_->all()),
      totals_(static_cast<int32_t>(by_rank.size()), options.budget),
      of_all_(&Add(ProcessSetId{0})) {}

SetNegotiation& NegotiatedSets::Add(ProcessSetId id, bool is_pair) {
  const MemberList& members = id == ProcessSetId{0} ? sets_->all() : *sets_->Find(id);
  std::vector<SessionId> sessions;
  for (Rank rank : members.Ranks()) sessions.push_back(by_rank_[static_cast<size_t>(rank.value)]);
  auto set = std::make_unique<SetNegotiation>(id, is_pair, members, std::move(sessions),
                                              options_.set, totals_);
  std::vector<FailedTensor> none;
  for (Rank rank : join_.joined().Ranks()) {
    if (members.Contains(rank)) set->table().Join(rank, none);
  }
  COORDD_CHECK(none.empty());
  return *(negotiations_[id] = std::move(set));
}

void NegotiatedSets::Remove(ProcessSetId id) {
  const auto negotiation = negotiations_.find(id);
  if (negotiation != negotiations_.end()) {
    deadlines_.erase({negotiation->second->deadline(), id});
    negotiations_.erase(negotiation);
  }
  sets_->Remove(id);
}

SetNegotiation& NegotiatedSets::At(ProcessSetId id) {
  SetNegotiation* const set = Find(id);
  COORDD_CHECK(set != nullptr);
  return *set;
}

SetNegotiation* NegotiatedSets::Find(ProcessSetId id) {
  const auto it = negotiations_.find(id);
  if (it != negotiations_.end()) return it->second.get();
  return sets_->WasAskedFor(id) ? &Add(id) : nullptr;
}

absl::StatusOr<SetNegotiation*> NegotiatedSets::Of(Rank rank, const v1::TensorSpec& tensor) {
  const absl::StatusOr<SetNegotiation*> set =
      IsPairwise(tensor) ? PairOf(rank, tensor) : NamedBy(rank, ProcessSetId{tensor.process_set()});
  if (set.ok()) return set;
  return absl::Status(set.status().code(),
                      absl::StrCat("tensor ", tensor.name(), ": ", set.status().message()));
}

absl::StatusOr<SetNegotiation*> NegotiatedSets::PairOf(Rank rank, const v1::TensorSpec& tensor) {
  const Rank peer{tensor.peer_rank()};
  const absl::string_view kind = Name(static_cast<CollectiveKind>(tensor.kind()));
  if (!all().Contains(peer) || peer == rank) {
    return absl::InvalidArgumentError(absl::StrCat(kind, " with peer rank ", ToInt(peer),
                                                   ", expected another one of the ", all().size(),
                                                   " ranks"));
  }
  if (tensor.process_set() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(kind, " in process set ", tensor.process_set(),
                                                   ", expected 0: the two are a set of their own"));
  }
  COORDD_ASSIGN_OR_RETURN(const ProcessSetId id, sets_->PairOf(rank, peer));
  SetNegotiation* const known = Find(id);
  return known != nullptr ? known : &Add(id, /*is_pair=*/true);
}

absl::StatusOr<SetNegotiation*> NegotiatedSets::NamedBy(Rank rank, ProcessSetId id) {
  SetNegotiation* const set = Find(id);
  if (set == nullptr) return sets_->NoSuchSet(id);
  if (set->is_pair()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "process set ", ToInt(id), " is a pair that coordd made for send and receive"));
  }
  if (!set->members().Contains(rank)) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", ToInt(rank), " is not in process set ",
                                                   ToInt(id), " of ranks ",
                                                   ListString(set->members().Ranks())));
  }
  return set;
}

std::vector<SetNegotiation*> NegotiatedSets::MaybeOf(Rank rank, ProcessSetId id) {
  SetNegotiation* const named = Find(id);
  if (named == nullptr || !named->members().Contains(rank)) return {};
  std::vector<SetNegotiation*> sets = {named};
  if (id != ProcessSetId{0}) return sets;
  for (ProcessSetId pair : sets_->PairsOf(rank)) sets.push_back(&At(pair));
  return sets;
}

void NegotiatedSets::Join(Rank rank, std::vector<FailedTensor>& failed) {
  for (const auto& [id, set] : negotiations_) {
    if (!set->members().Contains(rank)) continue;
    set->table().Join(rank, failed);
    Touch(*set);
  }
}

void NegotiatedSets::EndJoin() {
  for (const auto& [id, set] : negotiations_) {
    set->table().EndJoin();
    Touch(*set);
  }
}

void NegotiatedSets::Touch(SetNegotiation& set) {
  if (touched_.empty() || touched_.back() != &set) touched_.push_back(&set);
}

void NegotiatedSets::Settle() {
  for (SetNegotiation* set : touched_) Settle(*set);
  touched_.clear();
}

void NegotiatedSets::Settle(SetNegotiation& set) {
  if (set.table().has_ready()) {
    ready_.insert(set.id());
  } else {
    ready_.erase(set.id());
  }
  const absl::Time next = NextStall(set);
  if (next == set.deadline()) return;
  deadlines_.erase({set.deadline(), set.id()});
  set.set_deadline(next);
  if (next != absl::InfiniteFuture()) deadlines_.insert({next, set.id()});
}

absl::Time NegotiatedSets::NextStall() const {
  return abandoned_ || deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

SetNegotiation* NegotiatedSets::Stalling(absl::Time now) {
  return NextStall() <= now && !deadlines_.empty() ? &At(deadlines_.begin()->second) : nullptr;
}

std::vector<PendingTensor> NegotiatedSets::Stalled(absl::Time now, absl::Duration age,
                                                   size_t limit) const {
  std::vector<PendingTensor> stalled;
  if (abandoned_) return stalled;
  for (const auto& [id, set] : negotiations_) {
    if (set->deadline() == absl::InfiniteFuture()) continue;  // nothing is pending
    for (PendingTensor& tensor : set->table().Stalled(now, age, limit)) {
      tensor.process_set = id;
      stalled.push_back(std::move(tensor));
    }
  }
  return stalled;
}

std::optional<PendingTensor> NegotiatedSets::Find(Rank rank, ProcessSetId id,
                                                  absl::string_view name) const {
  const auto it = negotiations_.find(id);
  if (abandoned_ || it == negotiations_.end()) return std::nullopt;
  std::optional<PendingTensor> found = it->second->table().Find(name);
  if (found.has_value() || id != ProcessSetId{0}) return found;
  for (ProcessSetId pair : sets_->PairsOf(rank)) {
    found = negotiations_.at(pair)->table().Find(name);
    if (found.has_value()) return found;
  }
  return std::nullopt;
}

void NegotiatedSets::Abandon() {
  abandoned_ = true;
  touched_.clear();
}

int64_t NegotiatedSets::FreePending(int64_t most) {
  int64_t freed = 0;
  auto set = negotiations_.lower_bound(next_freed_);
  while (set != negotiations_.end() && freed < most) {
    freed += set->second->Free(most - freed);
    if (freed >= most) break;
    ++freed;  // also where nothing was pending: it was looked at
    next_freed_ = ProcessSetId{ToInt(set++->first) + 1};
  }
  return freed;
}

int64_t NegotiatedSets::Free(int64_t most) {
  Abandon();
  int64_t freed = FreeFirst(ready_, most);
  if (freed < most) freed += FreeFirst(deadlines_, most - freed);
  if (freed < most && !handed_on_) freed += sets_->FreeNames(most - freed);
  while (freed < most && !negotiations_.empty()) {
    const auto first = negotiations_.begin();
    freed += first->second->Free(most - freed);
    if (freed >= most) break;
    const ProcessSetId id = first->first;
    freed += 1 + first->second->names();
    negotiations_.erase(first);
    if (!handed_on_) sets_->Free(id);
  }
  return freed < most && !handed_on_ ? freed + sets_->FreeSets(most - freed) : freed;
}

void NegotiatedSets::Forgive(absl::Duration gap) {
  if (abandoned_) return;
  for (const auto& [id, set] : negotiations_) {
    set->table().Forgive(gap);
    Settle(*set);
  }
  join_.Forgive(gap);
}

absl::Status NegotiatedSets::CheckConsistency() const {
  if (abandoned_) return absl::OkStatus();  // what is freed in parts is not whole
  ReadinessTotals sums(0);
  size_t deadlines = 0;
  for (const auto& [id, set] : negotiations_) {
    const ReadinessTable& table = set->table();
    COORDD_RETURN_IF_ERROR(table.CheckConsistency());
    const MemberList* members = sets_->Find(id);
    if (members == nullptr || members->size() != set->members().size()) {
      return absl::InternalError(absl::StrCat("process set ", ToInt(id), " is not what it was"));
    }
    if (table.has_ready() != ready_.contains(id)) {
      return absl::InternalError(absl::StrCat("process set ", ToInt(id), " is forgotten"));
    }
    if (set->deadline() != absl::InfiniteFuture()) {
      ++deadlines;
      if (!deadlines_.contains({set->deadline(), id}) || set->deadline() > NextStall(*set)) {
        return absl::InternalError(absl::StrCat("process set ", ToInt(id), " has a late deadline"));
      }
    }
    sums.pending += table.pending();
    sums.tombstones += table.tombstones();
    sums.stalled += table.stalled();
  }
  if (sums.pending != totals_.pending || sums.tombstones != totals_.tombstones ||
      sums.stalled != totals_.stalled) {
    return absl::InternalError("the sums over the process sets are wrong");
  }
  if (deadlines != deadlines_.size()) return absl::InternalError("deadlines of no process set");
  return absl::OkStatus();
}

}  // namespace coordd
