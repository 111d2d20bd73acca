// Where the members of a group are and whom they reach how, as HostBackend has to know it. PURE.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/algorithms/algorithm_table.h"
#include "worker/algorithms/dimension_schedule.h"
#include "worker/algorithms/slice_exchange.h"
#include "worker/host/leader_run.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/interfaces/group_layout.h"
#include "worker/node/node_lane.h"

namespace coordd {

struct HostGroup {
  GroupLayout layout;         // ranks counted from 0 in the group
  std::vector<Rank> members;  // on the transport; empty: the same
  // The memory of each member on this node, where all of them map it. Empty: this rank is alone
  // there, or some member does not map it.
  std::vector<NodeMemory> memories = {};
  std::vector<Rank> neighbours = {};  // whose they are
  int32_t self_on_node = 0;           // among them
  // Where the members are, on several nodes. kAny: nothing but the transport can be used. Where
  // that is because this node's memory is not mapped, others find out by asking.
  Places places = Places::kAny;
  int32_t carriers = 0;           // how many members each of the nodes has, at least
  std::vector<Rank> across = {};  // by node: who has this rank's number there, if it is a carrier
  // Of the nodes, if they lie in one by their labels, or are apart and their number makes one.
  GridOfRanks grid = {};
  bool has_labels = false;   // whether the grid is that of the labels
  NodeLeaders leaders = {};  // of what has no root

  bool on_one_node() const { return layout.num_nodes() == 1; }
  Rank on_transport(Rank rank) const {
    return members.empty() ? rank : members[static_cast<size_t>(ToInt(rank))];
  }
};

// `node_memories`: of the ranks of this rank's node, from `first` on, on the transport; empty: they
// are not mapped.
HostGroup MakeHostGroup(GroupLayout layout, std::vector<Rank> members, Rank first,
                        absl::Span<const NodeMemory> node_memories);

// REQUIRES: on several nodes.
AcrossNodes AcrossOf(const HostGroup& group, const CollectiveArgs& args);
NodeLeaders LeadersOf(const HostGroup& group, const CollectiveArgs& args);

}  // namespace coordd
