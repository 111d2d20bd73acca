#include "server/generation/rank_groups.h"

namespace coordd {

RankGroup* RankGroups::Find(SessionRange sessions) {
  const auto known = groups_.find({sessions.first, sessions.count});
  if (known != groups_.end()) return &known->second;
  std::map<SessionId, Rank> rank_of;
  for (size_t rank = 0; rank < by_rank_.size(); ++rank)
    rank_of[by_rank_[rank]] = Rank{static_cast<int32_t>(rank)};
  std::vector<Rank> ranks;
  for (int32_t i = 0; i < sessions.count; ++i) {
    const auto rank = rank_of.find(SessionId{ToInt(sessions.first) + i});
    if (rank == rank_of.end()) return nullptr;
    ranks.push_back(rank->second);
  }
  // Nodes whose ranks keep changing company are not what this is for.
  if (groups_.size() > by_rank_.size()) groups_.clear();
  RankGroup group{.reporters = {all_, std::move(ranks)}};
  return &groups_.emplace(std::make_pair(sessions.first, sessions.count), std::move(group))
              .first->second;
}

}  // namespace coordd
