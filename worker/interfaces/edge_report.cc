#include "worker/interfaces/edge_report.h"

#include <iterator>

#include "common/protocol/protocol_bounds.h"

namespace coordd {

void EdgeReport::NoteNode(absl::string_view over) {
  MutexLock lock(&mu_);
  if (within_node_ == over) return;
  within_node_ = std::string(over);
  ++version_;
}

void EdgeReport::NoteRank(Rank rank, absl::string_view over) {
  MutexLock lock(&mu_);
  Group& group = between_nodes_[std::string(over)];
  ++group.ranks;
  group.first_ranks.insert(ToInt(rank));
  if (static_cast<int64_t>(group.first_ranks.size()) > kMaxEdgeRanks)
    group.first_ranks.erase(std::prev(group.first_ranks.end()));
  ++version_;
}

std::optional<v1::HostEdges> EdgeReport::EdgesBeyond(int64_t* told) {
  MutexLock lock(&mu_);
  if (*told == version_) return std::nullopt;
  *told = version_;
  v1::HostEdges edges;
  edges.set_within_node(within_node_);
  for (const auto& [over, group] : between_nodes_) {
    v1::EdgeGroup& told_group = *edges.add_between_nodes();
    told_group.set_over(over);
    told_group.set_ranks(group.ranks);
    for (const int32_t rank : group.first_ranks) told_group.add_first_ranks(rank);
  }
  return edges;
}

}  // namespace coordd
