#include "server/job/next_generation.h"

#include <algorithm>
#include <utility>

#include "server/job/current_generation.h"

namespace coordd {
namespace {

// To make a set, tell it and store it takes as long as so many entries; ranks are copied.
constexpr int64_t kEntriesOfSet = 16;
constexpr int64_t kRanksOfEntry = 4;

}  // namespace

NextGeneration::NextGeneration(v1::JobRecord record, const v1::CoordinatorMessage& head,
                               SetsLeft left, std::vector<Rank> moved,
                               std::shared_ptr<GenerationState> state)
    : record_(std::move(record)),
      left_(std::move(left)),
      moved_(std::move(moved)),
      state_(std::move(state)),
      maker_(head, left_.last()) {}

bool NextGeneration::Continue(int64_t* entries) {
  int64_t own = kEntriesATurn;
  int64_t& left = entries != nullptr ? *entries : own;
  while (const auto set = walk_.Next(left_, left)) {
    left -= kEntriesOfSet + static_cast<int64_t>(set->ranks.size()) / kRanksOfEntry;
    const std::vector<Rank> ranks = Moved(set->ranks);
    if (ranks.empty()) continue;
    maker_.Add(set->id, ranks);
    state_->TakeOver(set->id, ranks);
  }
  if (!walk_.done()) return false;
  state_->TakeOverNumbers(left_.last());
  found_ = std::make_shared<const FoundSets>(maker_.Finish());
  return true;
}

// Where the ranks of a node had to stay together they may have changed their order.
std::vector<Rank> NextGeneration::Moved(const std::vector<Rank>& ranks) const {
  std::vector<Rank> after;
  after.reserve(ranks.size());
  for (Rank rank : ranks) {
    const auto at = static_cast<size_t>(rank.value);
    if (at < moved_.size() && moved_[at] != Rank{-1}) after.push_back(moved_[at]);
  }
  std::sort(after.begin(), after.end());
  return after;
}

std::string NextGeneration::TakeStored() {
  std::string stored = std::move(maker_.stored());
  record_.AppendToString(&stored);
  return stored;
}

void NextGeneration::Bury(const Turn& turn) {
  CurrentGeneration(state_, /*knows_sets=*/true).Bury(turn);
  turn.Bury(FoundSets::Bury(std::make_shared<const FoundSets>(maker_.Finish())));
  turn.Bury(FoundSets::Bury(std::move(found_)));
}

}  // namespace coordd
