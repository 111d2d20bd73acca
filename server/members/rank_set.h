// Some of the members of a process set: one bit for each member.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "server/members/member_list.h"

namespace coordd {

// A few neighbours among the ranks, for what concerns all of these at once. Immutable.
class RankSlice {
 public:
  RankSlice(const MemberList& members, absl::Span<const Rank> ranks);  // REQUIRES: not empty

 private:
  friend class RankSet;
  size_t first_word_ = 0;
  std::vector<uint64_t> words_;  // from there on
  int32_t size_ = 0;             // how many they are
};

// REQUIRES of every method: `rank` is a member. Not thread-safe.
class RankSet {
 public:
  explicit RankSet(const MemberList& members)  // which outlives it
      : members_(&members), words_((static_cast<size_t>(members.size()) + 63) / 64) {}

  bool Contains(Rank rank) const { return Has(members_->IndexOf(rank)); }
  bool Insert(Rank rank);  // whether it was not in
  bool Erase(Rank rank);   // whether it was in
  void Clear();
  // REQUIRES of these two: a slice of the same members.
  bool ContainsAnyOf(const RankSlice& slice) const;
  void InsertAll(const RankSlice& slice);
  int32_t size() const { return size_; }
  bool full() const { return size_ == members_->size(); }
  bool empty() const { return size_ == 0; }

  RankSet Complement() const;
  // REQUIRES of these two: both are of the same members.
  RankSet Without(const RankSet& others) const;
  bool CoversAllWith(const RankSet& others) const;   // whether each member is in one of them
  std::vector<Rank> FirstRanks(size_t limit) const;  // in order, at most `limit`
  std::vector<Rank> Ranks() const { return FirstRanks(static_cast<size_t>(size_)); }
  int64_t size_bytes() const { return static_cast<int64_t>(words_.size() * sizeof(uint64_t)); }
  bool CountsAreRight() const;  // size() against the bits: for invariants

 private:
  static size_t Word(int32_t index) { return static_cast<size_t>(index) / 64; }
  static uint64_t Bit(int32_t index) { return uint64_t{1} << (index % 64); }
  bool Has(int32_t index) const { return (words_[Word(index)] & Bit(index)) != 0; }

  const MemberList* members_;
  int32_t size_ = 0;
  std::vector<uint64_t> words_;
};

// "rank 2", "ranks 0, 3 and 5 more": `total` ranks of which `first` are named, three at most.
std::string RanksString(absl::Span<const Rank> first, int64_t total);

}  // namespace coordd
