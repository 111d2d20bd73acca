#include "client/coordctl/edge_view.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/coordctl/state_view.h"
#include "common/protocol/rank_runs.h"

namespace coordd {
namespace {

// The ranks that have such an edge, by what it goes over.
using RanksByTransport = std::map<std::string, std::vector<int32_t>>;

void AppendLine(const char* where, RanksByTransport& over, std::string* out) {
  if (over.empty()) return;
  absl::StrAppend(out, "  edges ", where, ": ");
  if (over.size() == 1) {
    absl::StrAppend(out, over.begin()->first, "\n");
    return;
  }
  const char* separator = "mixed: ";
  for (auto& [transport, ranks] : over) {
    std::sort(ranks.begin(), ranks.end());
    absl::StrAppend(out, separator, transport, ranks.size() == 1 ? " of rank " : " of ranks ",
                    RankRunsText(ranks));
    separator = "; ";
  }
  absl::StrAppend(out, "\n");
}

}  // namespace

std::string EdgeText(const v1::WorkerState& worker) {
  const v1::HostEdges& edges = worker.host_edges();
  std::string text = edges.within_node();
  const char* separator = text.empty() ? "" : ", ";
  for (const v1::EdgeGroup& group : edges.between_nodes()) {
    absl::StrAppend(&text, separator, group.over());
    separator = " + ";
  }
  return text.empty() ? "-" : text;
}

std::string EdgesText(const v1::JobState& job) {
  RanksByTransport within, between;
  for (const v1::WorkerState& worker : job.workers()) {
    if (worker.rank() < 0) continue;
    const v1::HostEdges& edges = worker.host_edges();
    if (!edges.within_node().empty()) within[edges.within_node()].push_back(worker.rank());
    for (const v1::EdgeGroup& group : edges.between_nodes())
      between[group.over()].push_back(worker.rank());
  }
  std::string out;
  AppendLine("in nodes", within, &out);
  AppendLine("between nodes", between, &out);
  return out;
}

}  // namespace coordd
