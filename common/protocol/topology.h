// Who becomes which rank. A pure function: the same members in the same order of arrival always get
// the same ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"

namespace coordd {

struct TopologyMember {
  std::string worker_id;            // for messages
  std::string node_id;              // members with equal ones share memory
  std::vector<std::string> labels;  // from the slowest network to the fastest; all as many
  int32_t launcher_rank = -1;       // hints; -1: none
  int32_t launcher_local_rank = -1;
  int32_t previous_rank = -1;  // in the generation that this one follows; -1: none
};

struct Place {
  Rank rank;
  int32_t size = 0;
  int32_t local_rank = 0;  // among the ranks of this node
  int32_t local_size = 0;
  int32_t cross_rank = 0;  // index of the node among the nodes that have this local rank
  int32_t cross_size = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

struct NodeRun {  // `nodes` consecutive nodes with `ranks_per_node` ranks each
  int32_t nodes = 0;
  int32_t ranks_per_node = 0;
  friend bool operator==(const NodeRun&, const NodeRun&) = default;
};

// Domains of one level are numbered from 0 in the order of their first nodes. A run says of the
// nodes that follow: so many domains from `first` on, one behind the other, with so many nodes of
// each. A domain whose nodes do not lie together is in several runs.
struct DomainRun {
  int32_t first = 0;
  int32_t domains = 0;
  int32_t nodes_per_domain = 0;
  friend bool operator==(const DomainRun&, const DomainRun&) = default;
};

// The domains of one level: nodes whose labels are alike up to one of them, as those of a rack are.
using TopologyLevel = std::vector<DomainRun>;

struct Topology {
  std::vector<size_t> member_of_rank;  // index into the members
  std::vector<Place> places;           // by rank
  std::vector<NodeRun> runs;           // nodes in rank order, run-length encoded
  // From the slowest network to the fastest; those with one domain say nothing, and are left out,
  // as are those with more than kMaxDomainRuns.
  std::vector<TopologyLevel> levels;
};

// `members` in order of arrival. Who had a rank comes before who had none, and in the order of
// those ranks, as far as the ranks of a node stay together. Otherwise nodes are ordered by their
// labels, then by the lowest launcher rank on them (nodes without a hint last), then by the arrival
// of their first member; the members of a node by launcher rank, which no two have, where local
// ranks repeat if several launchers start workers on one node, then by launcher local rank and
// arrival (without a hint last). Ranks of a node are consecutive. cross_rank as in Horovod: nodes
// with fewer ranks are not counted where they have none.
Topology OrderRanks(absl::Span<const TopologyMember> members);

// FAILED_PRECONDITION, naming both workers and both values, if they cannot be in one generation:
// different numbers of labels, or one node with two sets of labels.
absl::Status CheckTopology(const TopologyMember& joining, const TopologyMember& present);

}  // namespace coordd
