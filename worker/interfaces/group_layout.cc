#include "worker/interfaces/group_layout.h"

#include <iterator>
#include <map>
#include <utility>

#include "common/base/check.h"

namespace coordd {

namespace {

// Of some of the nodes, in their order. Empty: they are in one domain.
NodeDomains DomainsOf(const NodeDomains& all, const std::vector<int32_t>& nodes) {
  std::map<int32_t, int32_t> numbers;
  NodeDomains domains;
  domains.reserve(nodes.size());
  for (const int32_t node : nodes) {
    const int32_t next = static_cast<int32_t>(numbers.size());
    domains.push_back(numbers.try_emplace(all[static_cast<size_t>(node)], next).first->second);
  }
  if (numbers.size() < 2) domains.clear();
  return domains;
}

}  // namespace

GroupLayout::GroupLayout(Rank self, std::vector<NodeRun> nodes, std::vector<NodeDomains> levels)
    : self_(self), nodes_(std::move(nodes)), levels_(std::move(levels)) {
  for (const NodeRun& run : nodes_) {
    COORDD_CHECK(run.nodes > 0 && run.ranks_per_node > 0);
    num_nodes_ += run.nodes;
    size_ += run.nodes * run.ranks_per_node;
  }
  COORDD_CHECK(ToInt(self_) >= 0 && ToInt(self_) < size_);
  for (const NodeDomains& level : levels_) COORDD_CHECK(std::ssize(level) == num_nodes_);
}

GroupLayout GroupLayout::Subgroup(absl::Span<const Rank> members) const {
  std::vector<NodeRun> nodes;
  std::vector<int32_t> in_all;  // which nodes of this layout they are
  Rank self{-1};
  for (size_t i = 0; i < members.size(); ++i) {
    COORDD_CHECK(i == 0 || members[i - 1] < members[i]);
    if (members[i] == self_) self = Rank{static_cast<int32_t>(i)};
    const int32_t node = node_of(members[i]);
    if (!in_all.empty() && in_all.back() == node) {
      ++nodes.back().ranks_per_node;
    } else {
      nodes.push_back({1, 1});
      in_all.push_back(node);
    }
  }
  // Neighbours of equal size are one run.
  std::vector<NodeRun> runs;
  for (const NodeRun& node : nodes) {
    if (!runs.empty() && runs.back().ranks_per_node == node.ranks_per_node) {
      ++runs.back().nodes;
    } else {
      runs.push_back(node);
    }
  }
  std::vector<NodeDomains> levels;
  for (const NodeDomains& level : levels_) {
    NodeDomains domains = DomainsOf(level, in_all);
    if (!domains.empty()) levels.push_back(std::move(domains));
  }
  return GroupLayout(self, std::move(runs), std::move(levels));
}

int32_t GroupLayout::node_of(Rank rank) const {
  int32_t left = ToInt(rank);
  COORDD_CHECK(left >= 0 && left < size_);
  int32_t node = 0;
  for (const NodeRun& run : nodes_) {
    const int32_t ranks = run.nodes * run.ranks_per_node;
    if (left < ranks) return node + left / run.ranks_per_node;
    left -= ranks;
    node += run.nodes;
  }
  COORDD_CHECK(false);  // the runs add up to size_
}

Rank GroupLayout::first_rank_of(int32_t node) const {
  COORDD_CHECK(node >= 0 && node < num_nodes_);
  int32_t rank = 0;
  for (const NodeRun& run : nodes_) {
    if (node < run.nodes) return Rank{rank + node * run.ranks_per_node};
    node -= run.nodes;
    rank += run.nodes * run.ranks_per_node;
  }
  COORDD_CHECK(false);  // the runs add up to num_nodes_
}

int32_t GroupLayout::ranks_on(int32_t node) const {
  COORDD_CHECK(node >= 0 && node < num_nodes_);
  for (const NodeRun& run : nodes_) {
    if (node < run.nodes) return run.ranks_per_node;
    node -= run.nodes;
  }
  COORDD_CHECK(false);  // the runs add up to num_nodes_
}

}  // namespace coordd
