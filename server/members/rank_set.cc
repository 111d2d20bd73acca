#include "server/members/rank_set.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr size_t kRanksInSentence = 3;  // more numbers than that nobody reads in a sentence

}  // namespace

RankSlice::RankSlice(const MemberList& members, absl::Span<const Rank> ranks) {
  size_t last_word = 0;
  first_word_ = std::numeric_limits<size_t>::max();
  for (Rank rank : ranks) {
    const size_t word = static_cast<size_t>(members.IndexOf(rank)) / 64;
    first_word_ = std::min(first_word_, word);
    last_word = std::max(last_word, word);
  }
  words_.resize(last_word - first_word_ + 1);
  for (Rank rank : ranks) {
    const auto index = static_cast<size_t>(members.IndexOf(rank));
    words_[index / 64 - first_word_] |= uint64_t{1} << (index % 64);
  }
  for (uint64_t word : words_) size_ += std::popcount(word);
}

bool RankSet::ContainsAnyOf(const RankSlice& slice) const {
  for (size_t i = 0; i < slice.words_.size(); ++i)
    if ((words_[slice.first_word_ + i] & slice.words_[i]) != 0) return true;
  return false;
}

// Bits are counted only where there are some already: that costs a call where the instruction may
// be missing.
void RankSet::InsertAll(const RankSlice& slice) {
  size_ += slice.size_;
  for (size_t i = 0; i < slice.words_.size(); ++i) {
    uint64_t& word = words_[slice.first_word_ + i];
    if (const uint64_t again = slice.words_[i] & word; again != 0) size_ -= std::popcount(again);
    word |= slice.words_[i];
  }
}

bool RankSet::Insert(Rank rank) {
  const int32_t index = members_->IndexOf(rank);
  if (Has(index)) return false;
  words_[Word(index)] |= Bit(index);
  ++size_;
  return true;
}

bool RankSet::Erase(Rank rank) {
  const int32_t index = members_->IndexOf(rank);
  if (!Has(index)) return false;
  words_[Word(index)] &= ~Bit(index);
  --size_;
  return true;
}

void RankSet::Clear() {
  if (size_ == 0) return;
  std::fill(words_.begin(), words_.end(), 0);
  size_ = 0;
}

RankSet RankSet::Complement() const {
  RankSet others(*members_);
  others.size_ = members_->size() - size_;
  for (size_t i = 0; i < words_.size(); ++i) others.words_[i] = ~words_[i];
  const int32_t tail = members_->size() % 64;
  if (tail != 0) others.words_.back() &= (uint64_t{1} << tail) - 1;
  return others;
}

RankSet RankSet::Without(const RankSet& others) const {
  RankSet rest(*members_);
  for (size_t i = 0; i < words_.size(); ++i) {
    rest.words_[i] = words_[i] & ~others.words_[i];
    rest.size_ += std::popcount(rest.words_[i]);
  }
  return rest;
}

bool RankSet::CoversAllWith(const RankSet& others) const {
  int32_t count = 0;
  for (size_t i = 0; i < words_.size(); ++i) {
    count += std::popcount(words_[i] | others.words_[i]);
  }
  return count == members_->size();
}

std::vector<Rank> RankSet::FirstRanks(size_t limit) const {
  std::vector<Rank> ranks;
  for (size_t i = 0; i < words_.size(); ++i) {
    for (uint64_t word = words_[i]; word != 0 && ranks.size() < limit; word &= word - 1) {
      ranks.push_back(members_->At(static_cast<int32_t>(i * 64) + std::countr_zero(word)));
    }
    if (ranks.size() == limit) break;
  }
  return ranks;
}

bool RankSet::CountsAreRight() const {
  int32_t count = 0;
  for (uint64_t word : words_) count += std::popcount(word);
  return count == size_ && size_ <= members_->size();
}

std::string RanksString(absl::Span<const Rank> first, int64_t total) {
  const size_t named = std::min({first.size(), kRanksInSentence, static_cast<size_t>(total)});
  std::string text = total == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < named; ++i) {
    absl::StrAppend(&text, i == 0 ? " " : ", ", ToInt(first[i]));
  }
  const int64_t rest = total - static_cast<int64_t>(named);
  if (rest > 0) absl::StrAppend(&text, " and ", rest, " more");
  return text;
}

}  // namespace coordd
