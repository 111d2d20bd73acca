#include "common/protocol/topology.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

constexpr int32_t kNoHint = std::numeric_limits<int32_t>::max();  // sorts behind every hint

int32_t HintOrLast(int32_t hint) { return hint < 0 ? kNoHint : hint; }

struct Node {
  size_t first_arrival = 0;  // index of its first member
  int32_t lowest_launcher_rank = kNoHint;
  int32_t lowest_previous_rank = kNoHint;
  std::vector<size_t> members;
};

std::vector<Node> GroupByNode(absl::Span<const TopologyMember> members) {
  std::vector<Node> nodes;
  absl::flat_hash_map<absl::string_view, size_t> index;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto [it, is_new] = index.try_emplace(members[i].node_id, nodes.size());
    if (is_new) nodes.push_back(Node{.first_arrival = i, .members = {}});
    Node& node = nodes[it->second];
    node.members.push_back(i);
    node.lowest_launcher_rank =
        std::min(node.lowest_launcher_rank, HintOrLast(members[i].launcher_rank));
    node.lowest_previous_rank =
        std::min(node.lowest_previous_rank, HintOrLast(members[i].previous_rank));
  }
  return nodes;
}

void Sort(absl::Span<const TopologyMember> members, std::vector<Node>& nodes) {
  std::sort(nodes.begin(), nodes.end(), [&](const Node& a, const Node& b) {
    return std::tie(a.lowest_previous_rank, members[a.first_arrival].labels, a.lowest_launcher_rank,
                    a.first_arrival) < std::tie(b.lowest_previous_rank,
                                                members[b.first_arrival].labels,
                                                b.lowest_launcher_rank, b.first_arrival);
  });
  auto key = [&](size_t i) {
    return std::make_tuple(HintOrLast(members[i].previous_rank),
                           HintOrLast(members[i].launcher_rank),
                           HintOrLast(members[i].launcher_local_rank), i);
  };
  for (Node& node : nodes) {
    std::sort(node.members.begin(), node.members.end(),
              [&](size_t a, size_t b) { return key(a) < key(b); });
  }
}

// By node, in their order, the domain that it is in: those of one domain of the level before, whose
// numbers are in `domains`, that have the same label there.
void EnterLevel(absl::Span<const TopologyMember> members, const std::vector<Node>& nodes,
                size_t label, std::vector<int32_t>& domains) {
  std::map<std::pair<int32_t, absl::string_view>, int32_t> numbers;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const std::string& name = members[nodes[i].first_arrival].labels[label];
    const int32_t next = static_cast<int32_t>(numbers.size());
    domains[i] = numbers.try_emplace({domains[i], name}, next).first->second;
  }
}

// Empty: all nodes are in one domain.
TopologyLevel RunsOf(const std::vector<int32_t>& domains) {
  TopologyLevel runs;
  for (size_t begin = 0, end = 0; begin < domains.size(); begin = end) {
    while (end < domains.size() && domains[end] == domains[begin]) ++end;
    const int32_t nodes = static_cast<int32_t>(end - begin);
    if (nodes == static_cast<int32_t>(domains.size())) return {};
    if (!runs.empty() && runs.back().nodes_per_domain == nodes &&
        runs.back().first + runs.back().domains == domains[begin]) {
      ++runs.back().domains;
    } else {
      runs.push_back({.first = domains[begin], .domains = 1, .nodes_per_domain = nodes});
    }
  }
  return runs;
}

std::vector<TopologyLevel> LevelsOf(absl::Span<const TopologyMember> members,
                                    const std::vector<Node>& nodes) {
  // All have as many (CheckTopology).
  size_t labels = std::numeric_limits<size_t>::max();
  for (const Node& node : nodes)
    labels = std::min(labels, members[node.first_arrival].labels.size());
  std::vector<TopologyLevel> levels;
  std::vector<int32_t> domains(nodes.size());
  for (size_t label = 0; !nodes.empty() && label < labels; ++label) {
    EnterLevel(members, nodes, label, domains);
    TopologyLevel level = RunsOf(domains);
    if (!level.empty() && std::ssize(level) <= kMaxDomainRuns) levels.push_back(std::move(level));
  }
  return levels;
}

std::string LabelsString(const std::vector<std::string>& labels) {
  return labels.empty() ? "no topology labels"
                        : absl::StrCat("topology ", absl::StrJoin(labels, "/"));
}

}  // namespace

Topology OrderRanks(absl::Span<const TopologyMember> members) {
  std::vector<Node> nodes = GroupByNode(members);
  Sort(members, nodes);
  Topology topology;
  std::vector<int32_t> nodes_with_local_rank;  // so far, by local rank
  for (const Node& node : nodes) {
    const int32_t local_size = static_cast<int32_t>(node.members.size());
    if (nodes_with_local_rank.size() < node.members.size()) {
      nodes_with_local_rank.resize(node.members.size());
    }
    for (int32_t local_rank = 0; local_rank < local_size; ++local_rank) {
      const size_t slot = static_cast<size_t>(local_rank);
      topology.places.push_back(Place{.rank = Rank{static_cast<int32_t>(topology.places.size())},
                                      .size = static_cast<int32_t>(members.size()),
                                      .local_rank = local_rank,
                                      .local_size = local_size,
                                      .cross_rank = nodes_with_local_rank[slot]++});
      topology.member_of_rank.push_back(node.members[slot]);
    }
    if (topology.runs.empty() || topology.runs.back().ranks_per_node != local_size) {
      topology.runs.push_back(NodeRun{.nodes = 0, .ranks_per_node = local_size});
    }
    ++topology.runs.back().nodes;
  }
  for (Place& place : topology.places) {
    place.cross_size = nodes_with_local_rank[static_cast<size_t>(place.local_rank)];
  }
  topology.levels = LevelsOf(members, nodes);
  return topology;
}

absl::Status CheckTopology(const TopologyMember& joining, const TopologyMember& present) {
  if (joining.labels.size() != present.labels.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", joining.worker_id, " has ", LabelsString(joining.labels),
                     ", worker ", present.worker_id, " has ", LabelsString(present.labels),
                     ": all workers of a job must have as many topology labels"));
  }
  if (joining.node_id == present.node_id && joining.labels != present.labels) {
    return absl::FailedPreconditionError(absl::StrCat(
        "workers ", joining.worker_id, " and ", present.worker_id, " are on node ", joining.node_id,
        ", but worker ", joining.worker_id, " has ", LabelsString(joining.labels), " and worker ",
        present.worker_id, " has ", LabelsString(present.labels)));
  }
  return absl::OkStatus();
}

}  // namespace coordd
