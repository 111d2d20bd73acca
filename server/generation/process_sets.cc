#include "server/generation/process_sets.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"
#include "common/protocol/protocol_bounds.h"
#include "server/model/graveyard.h"

namespace coordd {
namespace {

absl::Status CheckRanks(const std::vector<Rank>& ranks, int32_t world_size) {
  if (ranks.empty()) {
    return absl::InvalidArgumentError("a process set without ranks, expected at least one");
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].value < 0 || ranks[i].value >= world_size) {
      return absl::InvalidArgumentError(absl::StrCat("a process set of ranks ", ListString(ranks),
                                                     " with rank ", ToInt(ranks[i]),
                                                     ", expected 0 to ", world_size - 1));
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      return absl::InvalidArgumentError(
          absl::StrCat("a process set of ranks ", ListString(ranks), " with rank ", ToInt(ranks[i]),
                       " behind ", ToInt(ranks[i - 1]), ", expected each rank once and in order"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

const MemberList* ProcessSets::Find(ProcessSetId id) const {
  if (id == ProcessSetId{0}) return &all_;
  const auto it = sets_.find(id);
  return it == sets_.end() ? nullptr : &it->second->members;
}

bool ProcessSets::WasAskedFor(ProcessSetId id) const {
  const auto it = sets_.find(id);
  return it != sets_.end() && !it->second->is_pair;
}

absl::Status ProcessSets::NoSuchSet(ProcessSetId id) const {
  if (id.value > 0 && id.value <= last_id_) {
    return absl::FailedPreconditionError(
        absl::StrCat("process set ", ToInt(id), " was removed",
                     id.value <= earlier_ ? ", or none of its ranks is left" : ""));
  }
  return absl::NotFoundError(absl::StrCat("there is no process set ", ToInt(id)));
}

absl::StatusOr<ProcessSetId> ProcessSets::Add(const std::vector<Rank>& ranks) {
  COORDD_RETURN_IF_ERROR(CheckRanks(ranks, all_.size()));
  auto exists = [&](ProcessSetId id) {
    return absl::AlreadyExistsError(
        absl::StrCat("process set ", ToInt(id), " has the ranks ", ListString(ranks), " already"));
  };
  if (static_cast<int32_t>(ranks.size()) == all_.size()) return exists(ProcessSetId{0});
  const auto [begin, end] = by_hash_.equal_range(absl::HashOf(ranks));
  for (auto it = begin; it != end; ++it) {
    if (sets_.at(it->second)->members.Ranks() == ranks) return exists(it->second);
  }
  COORDD_RETURN_IF_ERROR(CheckBudget(ranks.size()));
  return AddNew(ranks);
}

// Its negotiation is most of it.
int64_t ProcessSets::CostOf(size_t members, const std::string& name) {
  constexpr int64_t kBytes = 2240, kNames = 2;
  return kBytes + kNames * static_cast<int64_t>(name.size()) +
         static_cast<int64_t>((sizeof(Rank) + sizeof(SessionId)) * members);
}

absl::Status ProcessSets::CheckBudget(size_t members, const std::string& name) const {
  if (share_.HasRoomFor(CostOf(members, name))) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "no room for a process set of ", Counted(static_cast<int64_t>(members), "rank"), " beside ",
      Counted(static_cast<int64_t>(size()), "set"), " and ",
      Counted(static_cast<int64_t>(pairs()), "pair"), " of this job: ", share_.NoRoom("this job")));
}

absl::Status ProcessSets::CheckRoomFor(size_t members) const {
  COORDD_RETURN_IF_ERROR(CheckRoom());
  if (members_ + static_cast<int64_t>(members) <= kMaxMembers) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no room for a process set of ", Counted(static_cast<int64_t>(members), "rank"),
                   ": those of this job have ", Counted(members_, "member"), ", and coordd keeps ",
                   kMaxMembers));
}

absl::StatusOr<ProcessSetId> ProcessSets::AddNew(const std::vector<Rank>& ranks) {
  COORDD_RETURN_IF_ERROR(CheckRoomFor(ranks.size()));
  members_ += static_cast<int64_t>(ranks.size());
  const ProcessSetId id = NewSet(ranks, /*is_pair=*/false);
  last_asked_for_ = id.value;
  by_hash_.emplace(absl::HashOf(ranks), id);
  return id;
}

absl::StatusOr<ProcessSetId> ProcessSets::AddNamed(const std::string& name,
                                                   const std::vector<Rank>& ranks) {
  COORDD_RETURN_IF_ERROR(CheckBudget(ranks.size(), name));
  return KeepNamed(name, ranks);
}

absl::StatusOr<ProcessSetId> ProcessSets::KeepNamed(const std::string& name,
                                                    const std::vector<Rank>& ranks) {
  COORDD_RETURN_IF_ERROR(CheckRoomFor(ranks.size()));
  members_ += static_cast<int64_t>(ranks.size());
  const ProcessSetId id = NewSet(ranks, /*is_pair=*/false, name);
  by_name_.emplace(name, id);
  return id;
}

absl::Status ProcessSets::CheckNamed(const std::string& name, const std::vector<Rank>& ranks,
                                     ProcessSetId id, Rank asker) const {
  const auto named = by_name_.find(name);
  if (id != ProcessSetId{0}) {
    const auto set = sets_.find(id);
    if (set == sets_.end()) return NoSuchSet(id);
    if (!ranks.empty())
      return absl::InvalidArgumentError("a removal that names ranks too, expected none");
    if (named == by_name_.end() || named->second != id)
      return absl::InvalidArgumentError(
          absl::StrCat("process set ", ToInt(id), " does not have the name ", name));
    if (set->second->members.Contains(asker)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("rank ", ToInt(asker), " is not in process set ",
                                                   name, " of ranks ",
                                                   ListString(set->second->members.Ranks())));
  }
  COORDD_RETURN_IF_ERROR(CheckRanks(ranks, all_.size()));
  if (!std::binary_search(ranks.begin(), ranks.end(), asker)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", ToInt(asker), " asks for process set ", name, " of ranks ",
                     ListString(ranks), ", expected one of these: its members alone make it"));
  }
  if (named == by_name_.end()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("process set ", ToInt(named->second), " of ranks ",
                                               ListString(sets_.at(named->second)->members.Ranks()),
                                               " has the name ", name, " already"));
}

absl::Status ProcessSets::CheckRemove(ProcessSetId id) const {
  if (id == ProcessSetId{0}) {
    return absl::InvalidArgumentError("process set 0, of all ranks, cannot be removed");
  }
  const auto it = sets_.find(id);
  if (it == sets_.end()) return NoSuchSet(id);
  if (!it->second->name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("process set ", ToInt(id), " has the name ",
                                                   it->second->name,
                                                   ": its members alone made it, and end it"));
  }
  if (!it->second->is_pair) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "process set ", ToInt(id), " is the pair of ranks ", ListString(it->second->members.Ranks()),
      " that coordd made for send and receive; it cannot be removed"));
}

void ProcessSets::Remove(ProcessSetId id) {
  const std::vector<Rank> ranks = sets_.at(id)->members.Ranks();
  Count(-CostOf(ranks.size(), sets_.at(id)->name));
  if (const std::string& name = sets_.at(id)->name; !name.empty()) {
    by_name_.erase(name);
  } else {
    const auto [begin, end] = by_hash_.equal_range(absl::HashOf(ranks));
    by_hash_.erase(
        std::find_if(begin, end, [id](const auto& entry) { return entry.second == id; }));
  }
  members_ -= static_cast<int64_t>(ranks.size());
  sets_.erase(id);
}

int64_t ProcessSets::FreeNames(int64_t most) {
  int64_t freed = FreeFirst(by_hash_, most);
  if (freed < most) freed += FreeFirst(by_name_, most - freed);
  if (freed < most) freed += FreeFirst(pairs_, most - freed);
  return freed;
}

void ProcessSets::Free(ProcessSetId id) {
  const auto set = sets_.find(id);
  if (set == sets_.end()) return;  // that of all ranks
  Count(-CostOf(static_cast<size_t>(set->second->members.size()), set->second->name));
  sets_.erase(set);
}

int64_t ProcessSets::FreeSets(int64_t most) {
  int64_t bytes = 0, freed = 0;
  for (auto it = sets_.begin(); it != sets_.end() && freed < most; ++freed) {
    const Set& set = *it->second;
    bytes += CostOf(static_cast<size_t>(set.members.size()), set.name);
    sets_.erase(it++);
  }
  Count(-bytes);
  return freed;
}

absl::StatusOr<ProcessSetId> ProcessSets::PairOf(Rank a, Rank b) {
  const std::pair<Rank, Rank> key = std::minmax(a, b);
  const auto it = pairs_.find(key);
  if (it != pairs_.end()) return it->second;
  COORDD_RETURN_IF_ERROR(CheckBudget(/*members=*/2));
  return KeepPair(key.first, key.second);
}

absl::StatusOr<ProcessSetId> ProcessSets::KeepPair(Rank low, Rank high) {
  COORDD_RETURN_IF_ERROR(CheckRoom());
  const ProcessSetId id = NewSet({low, high}, /*is_pair=*/true);
  pairs_[{low, high}] = id;
  pairs_of_[low].push_back(id);
  pairs_of_[high].push_back(id);
  return id;
}

absl::Status ProcessSets::Restore(ProcessSetId id, const std::vector<Rank>& ranks, bool is_pair,
                                  const std::string& name) {
  COORDD_RETURN_IF_ERROR(CheckRanks(ranks, all_.size()));
  if (id.value <= last_id_ || (is_pair && ranks.size() != 2) || by_name_.contains(name)) {
    return absl::InvalidArgumentError(absl::StrCat("process set ", ToInt(id), " of ", ranks.size(),
                                                   " ranks behind set ", last_id_));
  }
  if (is_pair && pairs_.contains({ranks[0], ranks[1]})) {
    return absl::InvalidArgumentError(
        absl::StrCat("process sets ", ToInt(pairs_.at({ranks[0], ranks[1]})), " and ", ToInt(id),
                     " are the same pair of ranks ", ListString(ranks)));
  }
  last_id_ = id.value - 1;  // the next number is this one
  if (!name.empty()) return KeepNamed(name, ranks).status();
  return is_pair ? KeepPair(ranks[0], ranks[1]).status() : AddNew(ranks).status();
}

const MemberList* ProcessSets::Left(ProcessSetId id) const {
  const auto it = sets_.find(id);
  if (it == sets_.end() || it->second->is_pair || !it->second->name.empty()) return nullptr;
  return &it->second->members;
}

std::vector<ProcessSetId> ProcessSets::PairsOf(Rank rank) const {
  const auto it = pairs_of_.find(rank);
  return it == pairs_of_.end() ? std::vector<ProcessSetId>() : it->second;
}

absl::Status ProcessSets::CheckRoom() const {
  if (last_id_ + 1 >= kProcessSetNumbers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this job has had ", last_id_, " process sets, which is all there may be"));
  }
  if (sets_.size() < kMaxSets) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "this job has ", size(), " process sets and ", pairs(),
      " pairs for send and receive, and coordd keeps ", kMaxSets, " of both together"));
}

ProcessSetId ProcessSets::NewSet(std::vector<Rank> ranks, bool is_pair, const std::string& name) {
  const ProcessSetId id{++last_id_};
  Count(CostOf(ranks.size(), name));
  sets_[id] = std::make_unique<Set>(Set{MemberList(std::move(ranks)), is_pair, name});
  return id;
}

std::string FirstDifference(const std::vector<Rank>& a, const std::vector<Rank>& b) {
  if (std::max(a.size(), b.size()) <= kListedRanks || a.empty() || b.empty()) return "";
  const auto [x, y] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto at = [](const std::vector<Rank>& list, std::vector<Rank>::const_iterator place) {
    return place == list.end() ? std::string("the end") : absl::StrCat("rank ", ToInt(*place));
  };
  return absl::StrCat("; the first difference is ", at(a, x), " for ", at(b, y), " in place ",
                      x - a.begin());
}

std::string ListString(const std::vector<Rank>& ranks) {
  std::string text = "[";
  for (size_t i = 0; i < std::min(ranks.size(), kListedRanks); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", ToInt(ranks[i]));
  }
  if (ranks.size() > kListedRanks) {
    absl::StrAppend(&text, " and ", ranks.size() - kListedRanks, " more");
  }
  return text + "]";
}

}  // namespace coordd
