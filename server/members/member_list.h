// The members of a process set.
#pragma once

#include <cstdint>
#include <vector>

#include "common/protocol/types.h"

namespace coordd {

// Immutable, in the order of their ranks. What is kept for each member is indexed by its position
// here, so a set of two in a job of thousands costs as much as a job of two.
class MemberList {
 public:
  static MemberList All(int32_t world_size);     // 0, 1, 2, …: costs nothing
  explicit MemberList(std::vector<Rank> ranks);  // REQUIRES: strictly increasing, not empty

  int32_t size() const { return size_; }
  // The position of a rank; -1 when it is no member. It is asked at every report of every rank, so
  // it is no call where all are members.
  int32_t IndexOf(Rank rank) const {
    if (!ranks_.empty()) return Search(rank);
    return rank.value >= 0 && rank.value < size_ ? rank.value : -1;
  }
  bool Contains(Rank rank) const { return IndexOf(rank) >= 0; }
  Rank At(int32_t index) const {  // REQUIRES: 0 <= index < size()
    return ranks_.empty() ? Rank{index} : ranks_[static_cast<size_t>(index)];
  }
  std::vector<Rank> Ranks() const;

 private:
  MemberList() = default;
  int32_t Search(Rank rank) const;

  int32_t size_ = 0;
  std::vector<Rank> ranks_;  // empty: all
};

}  // namespace coordd
