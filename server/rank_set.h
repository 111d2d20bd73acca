// A set of the ranks of one generation: one bit each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/types.h"

namespace coordd {

// REQUIRES of every method: 0 <= rank < world_size. Not thread-safe.
class RankSet {
 public:
  explicit RankSet(int32_t world_size)
      : world_size_(world_size), words_((static_cast<size_t>(world_size) + 63) / 64) {}

  bool Contains(Rank rank) const { return (words_[Word(rank)] & Bit(rank)) != 0; }
  bool Insert(Rank rank);  // whether it was not in
  bool Erase(Rank rank);   // whether it was in
  int32_t size() const { return size_; }
  bool full() const { return size_ == world_size_; }
  bool empty() const { return size_ == 0; }

  RankSet Complement() const;
  std::vector<Rank> FirstRanks(size_t limit) const;  // in order, at most `limit`
  std::vector<Rank> Ranks() const { return FirstRanks(static_cast<size_t>(size_)); }
  int64_t size_bytes() const { return static_cast<int64_t>(words_.size() * sizeof(uint64_t)); }
  bool CountsAreRight() const;  // size() against the bits: for invariants

 private:
  static size_t Word(Rank rank) { return static_cast<size_t>(rank.value) / 64; }
  static uint64_t Bit(Rank rank) { return uint64_t{1} << (rank.value % 64); }

  int32_t world_size_;
  int32_t size_ = 0;
  std::vector<uint64_t> words_;
};

// "rank 2", "ranks 0, 3 and 5 more": `total` ranks of which `first` are named, three at most.
std::string RanksString(absl::Span<const Rank> first, int64_t total);

}  // namespace coordd
