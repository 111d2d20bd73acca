#include "worker/host/host_group.h"

#include <algorithm>
#include <utility>

#include "common/protocol/tensor_spec.h"

namespace coordd {
HostGroup MakeHostGroup(GroupLayout layout, std::vector<Rank> members, Rank first,
                        absl::Span<const NodeMemory> node_memories) {
  HostGroup group{.layout = std::move(layout), .members = std::move(members)};
  const GroupLayout& ranks = group.layout;
  const int32_t nodes = ranks.num_nodes();
  const int32_t own_node = ranks.node_of(ranks.self());
  const int32_t own = ranks.ranks_on(own_node);
  int32_t most = own;
  group.carriers = own;
  for (int32_t node = 0; node < nodes; ++node) {
    most = std::max(most, ranks.ranks_on(node));
    group.carriers = std::min(group.carriers, ranks.ranks_on(node));
  }
  if (most > NodeLane::kMaxMembers || (own > 1 && node_memories.empty())) return group;
  group.self_on_node = ToInt(ranks.self()) - ToInt(ranks.first_rank_of(own_node));
  for (int32_t i = 0; own > 1 && i < own; ++i) {
    const Rank rank = group.on_transport(Rank{ToInt(ranks.self()) - group.self_on_node + i});
    group.neighbours.push_back(rank);
    group.memories.push_back(node_memories[static_cast<size_t>(ToInt(rank) - ToInt(first))]);
  }
  if (nodes == 1) return group;
  group.grid = GridOf(ranks.levels());
  group.has_labels = !group.grid.empty();
  if (most == 1 && !group.has_labels) group.grid = GridOfFactors(nodes);
  group.places = most == 1                  ? PlacesApart(group.grid, nodes)
                 : most == group.carriers   ? Places::kEvenNodes
                 : ranks.size() < 2 * nodes ? Places::kThinNodes
                                            : Places::kUnevenNodes;
  const int32_t number = group.self_on_node < group.carriers ? group.self_on_node : 0;
  group.leaders.node = own_node;
  for (int32_t node = 0; node < nodes; ++node) {
    const Rank begin = ranks.first_rank_of(node);
    group.across.push_back(group.on_transport(Rank{ToInt(begin) + number}));
    group.leaders.ranks.push_back(group.on_transport(begin));
    group.leaders.members.push_back(ranks.ranks_on(node));
  }
  return group;
}

AcrossNodes AcrossOf(const HostGroup& group, const CollectiveArgs& args) {
  const GroupLayout& layout = group.layout;
  const int32_t root_node = HasRoot(args.kind) ? layout.node_of(args.root) : 0;
  return {.ranks = group.across,
          .self = layout.node_of(layout.self()),
          .root = root_node,
          .root_member = ToInt(args.root) - ToInt(layout.first_rank_of(root_node)),
          .carriers = group.carriers,
          .carries = group.self_on_node < group.carriers,
          .grid = &group.grid,
          .apart = AreApart(group.places)};
}

NodeLeaders LeadersOf(const HostGroup& group, const CollectiveArgs& args) {
  const GroupLayout& layout = group.layout;
  NodeLeaders leaders = group.leaders;
  if (!HasRoot(args.kind)) return leaders;
  leaders.root_node = layout.node_of(args.root);
  leaders.ranks[static_cast<size_t>(leaders.root_node)] = group.on_transport(args.root);
  if (leaders.node == leaders.root_node)
    leaders.leader = ToInt(args.root) - ToInt(layout.first_rank_of(leaders.root_node));
  return leaders;
}

}  // namespace coordd
