#include "server/rank_set.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr size_t kNamedRanks = 3;  // more numbers than that nobody reads in a sentence

}  // namespace

bool RankSet::Insert(Rank rank) {
  if (Contains(rank)) return false;
  words_[Word(rank)] |= Bit(rank);
  ++size_;
  return true;
}

bool RankSet::Erase(Rank rank) {
  if (!Contains(rank)) return false;
  words_[Word(rank)] &= ~Bit(rank);
  --size_;
  return true;
}

RankSet RankSet::Complement() const {
  RankSet others(world_size_);
  others.size_ = world_size_ - size_;
  for (size_t i = 0; i < words_.size(); ++i) others.words_[i] = ~words_[i];
  const int32_t tail = world_size_ % 64;
  if (tail != 0) others.words_.back() &= (uint64_t{1} << tail) - 1;
  return others;
}

std::vector<Rank> RankSet::FirstRanks(size_t limit) const {
  std::vector<Rank> ranks;
  for (size_t i = 0; i < words_.size(); ++i) {
    for (uint64_t word = words_[i]; word != 0 && ranks.size() < limit; word &= word - 1) {
      ranks.push_back(Rank{static_cast<int32_t>(i * 64) + std::countr_zero(word)});
    }
    if (ranks.size() == limit) break;
  }
  return ranks;
}

bool RankSet::CountsAreRight() const {
  int32_t count = 0;
  for (uint64_t word : words_) count += std::popcount(word);
  return count == size_ && size_ <= world_size_;
}

std::string RanksString(absl::Span<const Rank> first, int64_t total) {
  const size_t named = std::min({first.size(), kNamedRanks, static_cast<size_t>(total)});
  std::string text = total == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < named; ++i) {
    absl::StrAppend(&text, i == 0 ? " " : ", ", ToInt(first[i]));
  }
  const int64_t rest = total - static_cast<int64_t>(named);
  if (rest > 0) absl::StrAppend(&text, " and ", rest, " more");
  return text;
}

}  // namespace coordd
