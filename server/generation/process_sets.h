// The process sets of one generation: their numbers and their members; and what becomes of them in
// the next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/protocol/protocol_bounds.h"
#include "common/protocol/types.h"
#include "server/members/member_list.h"
#include "server/model/byte_budget.h"

namespace coordd {

// PURE. Not thread-safe. Set 0, of all ranks, is always there. The others are asked for by the
// ranks, or pairs that coordd makes for SEND and RECEIVE. A number is never used twice.
class ProcessSets {
 public:
  static constexpr size_t kMaxSets = kMaxProcessSets;
  static constexpr int64_t kMaxMembers = kMaxProcessSetMembers;

  // They take of `budget`, of the job's owner; null: without a bound.
  explicit ProcessSets(int32_t world_size, std::shared_ptr<ByteBudget> budget = nullptr)
      : all_(MemberList::All(world_size)), share_(std::move(budget)) {}

  const MemberList& all() const { return all_; }
  const MemberList* Find(ProcessSetId id) const;  // nullptr: there is none. Valid until Remove
  bool WasAskedFor(ProcessSetId id) const;        // it is there, and no pair; not set 0
  absl::Status NoSuchSet(ProcessSetId id) const;  // what to say then

  // INVALID_ARGUMENT: not strictly increasing ranks of the job, one at least. ALREADY_EXISTS: names
  // the set of these ranks. RESOURCE_EXHAUSTED: too many sets, or members.
  absl::StatusOr<ProcessSetId> Add(const std::vector<Rank>& ranks);
  // A set that its members make alone. REQUIRES: CheckNamed(…, id 0) is OK. RESOURCE_EXHAUSTED.
  absl::StatusOr<ProcessSetId> AddNamed(const std::string& name, const std::vector<Rank>& ranks);
  // Whether `asker` may ask for the set of this name, of these ranks, or (`id`) for its end.
  // INVALID_ARGUMENT: as Add; it is no member; that is not the set's name. ALREADY_EXISTS: names
  // the set that has the name. NOT_FOUND, FAILED_PRECONDITION: NoSuchSet.
  absl::Status CheckNamed(const std::string& name, const std::vector<Rank>& ranks, ProcessSetId id,
                          Rank asker) const;
  // INVALID_ARGUMENT: nobody asked for it, or its members alone did. NOT_FOUND,
  // FAILED_PRECONDITION: NoSuchSet.
  absl::Status CheckRemove(ProcessSetId id) const;
  void Remove(ProcessSetId id);  // REQUIRES: CheckRemove(id) is OK
  // The end of all of them, in parts: what they are found by (Remains::Free), then each. Nothing
  // else is called then.
  int64_t FreeNames(int64_t most);
  void Free(ProcessSetId id);
  int64_t FreeSets(int64_t most);

  // The set of these two for SEND and RECEIVE; made when first asked for. RESOURCE_EXHAUSTED: too
  // many sets.
  absl::StatusOr<ProcessSetId> PairOf(Rank a, Rank b);
  std::vector<ProcessSetId> PairsOf(Rank rank) const;

  // A set that there was before: in the generation before, or before coordd was started again. Two
  // may have the same ranks by now. Statuses: as Add, without ALREADY_EXISTS; what the owner's jobs
  // take refuses none.
  absl::Status Restore(ProcessSetId id, const std::vector<Rank>& ranks, bool is_pair,
                       const std::string& name = "");
  void SkipNumbersUpTo(int32_t id) {
    last_id_ = std::max(last_id_, id);
    last_asked_for_ = std::max(last_asked_for_, id);
  }

  // Numbers up to this one are of generations before, in which sets may have ended with their
  // ranks.
  void NoteEarlier(int32_t id) {
    SkipNumbersUpTo(id);
    earlier_ = id;
  }
  // The set of this number, if the generation leaves it to the next one: all ranks have asked for
  // it. nullptr: it does not.
  const MemberList* Left(ProcessSetId id) const;
  // The highest number that such a set has had.
  ProcessSetId last_left() const { return ProcessSetId{last_asked_for_}; }

  int64_t size() const { return static_cast<int64_t>(sets_.size()) - pairs(); }  // without set 0
  int64_t pairs() const { return static_cast<int64_t>(pairs_.size()); }

 private:
  struct Set {
    MemberList members;
    bool is_pair = false;
    std::string name = {};  // its members alone have asked for it
  };

  static int64_t CostOf(size_t members, const std::string& name);
  absl::Status CheckRoom() const;
  absl::Status CheckRoomFor(size_t members) const;
  absl::Status CheckBudget(size_t members, const std::string& name = "") const;
  absl::StatusOr<ProcessSetId> KeepNamed(const std::string& name, const std::vector<Rank>& ranks);
  absl::StatusOr<ProcessSetId> KeepPair(Rank low, Rank high);
  void Count(int64_t bytes) { share_.Set(bytes_ += bytes); }
  absl::StatusOr<ProcessSetId> AddNew(const std::vector<Rank>& ranks);
  ProcessSetId NewSet(std::vector<Rank> ranks, bool is_pair, const std::string& name = "");

  const MemberList all_;
  int32_t last_id_ = 0;
  int32_t earlier_ = 0;
  int32_t last_asked_for_ = 0;  // by all ranks
  int64_t members_ = 0;         // of sets that were asked for
  absl::flat_hash_map<ProcessSetId, std::unique_ptr<Set>> sets_;
  // What all have asked for, by hash of the ranks. No tree: the next generation takes over all.
  std::unordered_multimap<size_t, ProcessSetId> by_hash_;
  std::map<std::string, ProcessSetId> by_name_;
  std::map<std::pair<Rank, Rank>, ProcessSetId> pairs_;
  absl::flat_hash_map<Rank, std::vector<ProcessSetId>> pairs_of_;
  int64_t bytes_ = 0;
  BudgetShare share_;
};

// Two lists of as many fit into a message that people read.
inline constexpr size_t kListedRanks = 32;

// "[0, 2, 5]"; of a long list the beginning and how many more.
std::string ListString(const std::vector<Rank>& ranks);
// "; the first difference is rank 4 for the end in place 40", behind two lists that are shown in
// part only; otherwise empty.
std::string FirstDifference(const std::vector<Rank>& a, const std::vector<Rank>& b);

}  // namespace coordd
