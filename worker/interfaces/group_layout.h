// Where the ranks of a generation are: which of them share a node. PURE.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/types.h"

namespace coordd {

struct NodeRun {
  int32_t nodes = 0;
  int32_t ranks_per_node = 0;
};

// By node, in rank order: the number of the domain (a rack, an aisle) that it is in. They are
// numbered from 0 in the order of their first nodes.
using NodeDomains = std::vector<int32_t>;

// Ranks of a node are consecutive, so that the runs say everything in O(number of distinct node
// sizes).
class GroupLayout {
 public:
  // `levels`: how the network joins the nodes, from the slowest network to the fastest. Each domain
  // of one lies in a domain of the one before; one with a single domain says nothing. REQUIRES: the
  // runs add up to more than ToInt(self), and each level has as many nodes.
  GroupLayout(Rank self, std::vector<NodeRun> nodes, std::vector<NodeDomains> levels = {});
  // The layout of `size` ranks on one node.
  static GroupLayout OneNode(Rank self, int32_t size) { return GroupLayout(self, {{1, size}}); }
  // The layout of the given ranks, counted from 0 in their order. REQUIRES: strictly increasing
  // ranks of this layout, `self` among them.
  GroupLayout Subgroup(absl::Span<const Rank> members) const;

  Rank self() const { return self_; }
  int32_t size() const { return size_; }
  int32_t num_nodes() const { return num_nodes_; }
  int32_t node_of(Rank rank) const;        // index of the node, in rank order
  Rank first_rank_of(int32_t node) const;  // REQUIRES: node < num_nodes()
  int32_t ranks_on(int32_t node) const;
  // Empty: nobody has told, or all nodes are in one domain.
  const std::vector<NodeDomains>& levels() const { return levels_; }
  bool shares_node(Rank other) const { return node_of(other) == node_of(self_); }

 private:
  Rank self_;
  std::vector<NodeRun> nodes_;
  std::vector<NodeDomains> levels_;
  int32_t size_ = 0;
  int32_t num_nodes_ = 0;
};

}  // namespace coordd
