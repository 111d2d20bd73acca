#include "worker/protocol/join_message.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/counted.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/net/own_address.h"
#include "common/protocol/process_set_parts.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

// Used when coordd names none, and bounds for what it names: a heartbeat of nothing would spin.
constexpr absl::Duration kDefaultHeartbeat = absl::Seconds(2);
constexpr absl::Duration kMinHeartbeat = absl::Milliseconds(1);

// An address of a network for documentation: there is nobody, and only the route to it is looked
// up.
constexpr char kAnywhere[] = "192.0.2.1";

absl::Status BadLevel(int32_t level, const std::string& what) {
  return absl::InternalError(
      absl::StrCat("coordd sent a membership whose topology level ", level, " ", what));
}

// By node, of how many `nodes` there are.
absl::StatusOr<NodeDomains> DomainsOf(const v1::TopologyLevel& told, int32_t level, int64_t nodes) {
  if (told.runs_size() > kMaxDomainRuns) {
    return BadLevel(
        level, absl::StrCat("has ", told.runs_size(), " runs, expected at most ", kMaxDomainRuns));
  }
  NodeDomains domains;
  int64_t numbered = 0;
  for (const v1::DomainRun& run : told.runs()) {
    if (run.domains() < 1 || run.nodes_per_domain() < 1)
      return BadLevel(level, "has an empty run of domains");
    if (run.first() < 0 || run.first() > numbered) {
      return BadLevel(level, absl::StrCat("begins domain ", run.first(), " behind ", numbered,
                                          " others, expected them in the order of their numbers"));
    }
    const int64_t added = int64_t{run.domains()} * run.nodes_per_domain();
    if (added > nodes - std::ssize(domains))
      return BadLevel(level, absl::StrCat("has more than the ", Counted(nodes, "node that there is",
                                                                        "nodes that there are")));
    for (int64_t i = 0; i < added; ++i)
      domains.push_back(run.first() + static_cast<int32_t>(i / run.nodes_per_domain()));
    numbered = std::max(numbered, int64_t{run.first()} + run.domains());
  }
  if (std::ssize(domains) == nodes) return domains;
  return BadLevel(level,
                  absl::StrCat("has ", Counted(std::ssize(domains), "node"), ", expected ", nodes));
}

// Whether each domain lies in one of the slower network's.
bool LiesIn(const NodeDomains& slower, const NodeDomains& domains) {
  std::vector<int32_t> around;
  for (size_t node = 0; node < domains.size(); ++node) {
    const size_t domain = static_cast<size_t>(domains[node]);
    if (domain == around.size()) around.push_back(slower[node]);
    if (around[domain] != slower[node]) return false;
  }
  return true;
}

absl::StatusOr<std::vector<NodeDomains>> LevelsOf(const v1::Membership& membership, int64_t nodes) {
  std::vector<NodeDomains> levels;
  if (membership.topology_size() == 0) return levels;
  if (membership.topology_size() > kMaxTopologyLabels || nodes > kMaxProcessSetRanks) {
    return absl::InternalError(absl::StrCat(
        "coordd sent a membership with ", membership.topology_size(), " topology levels of ", nodes,
        " nodes, expected at most ", kMaxTopologyLabels, " of ", kMaxProcessSetRanks));
  }
  for (const v1::TopologyLevel& told : membership.topology()) {
    const int32_t level = static_cast<int32_t>(levels.size());
    COORDD_ASSIGN_OR_RETURN(NodeDomains domains, DomainsOf(told, level, nodes));
    if (!levels.empty() && !LiesIn(levels.back(), domains))
      return BadLevel(level, absl::StrCat("cuts across the domains of level ", level - 1));
    levels.push_back(std::move(domains));
  }
  return levels;
}

}  // namespace

v1::Join MakeJoin(const WorkerOptions& options, const HostIdentity& host,
                  const std::string& metrics_address, pid_t pid, Random& random) {
  v1::Join join;
  join.set_executes_schedules(true);
  join.set_traces(true);
  join.set_drains(true);
  join.set_keeps_process_sets(true);
  join.set_knows_slots(true);
  join.set_schedules_devices(true);
  join.set_knows_topology(true);
  join.set_on_failure(static_cast<v1::OnFailure>(options.on_failure));
  join.set_job(options.job);
  join.set_token(options.token);
  join.set_worker_id(options.worker_id.empty()
                         ? absl::StrFormat("%s-%d-%08x", host.hostname.substr(0, 64), pid,
                                           random.Next() & 0xffffffffu)
                         : options.worker_id);
  join.mutable_host()->set_hostname(host.hostname);
  join.mutable_host()->set_node_id(host.node_id);
  for (const std::string& label : options.topology) join.mutable_host()->add_topology(label);
  join.set_pid(pid);
  join.set_launch(options.launch_id);
  join.set_launcher_rank(options.launcher_rank);
  join.set_launcher_local_rank(options.launcher_local_rank);
  join.set_launcher_local_size(std::max(options.launch.local_size, 0));
  join.mutable_versions()->set_protocol(kProtocolVersion);
  join.mutable_versions()->set_coordd(kVersion);
  join.set_metrics_address(metrics_address);
  if (options.min_workers > 0 || options.max_workers > 0 || options.settling_window.has_value()) {
    v1::JobLimits& limits = *join.mutable_limits();
    limits.set_min_workers(options.min_workers);
    limits.set_max_workers(options.max_workers);
    if (options.settling_window.has_value()) {
      const absl::Duration window = *options.settling_window;
      limits.mutable_settling_window()->set_seconds(absl::ToInt64Seconds(window));
      limits.mutable_settling_window()->set_nanos(static_cast<int32_t>(
          (window - absl::Seconds(absl::ToInt64Seconds(window))) / absl::Nanoseconds(1)));
    }
  }
  return join;
}

std::string HostAddress(const HostPort& coordinator, bool has_other_nodes) {
  std::string address = LocalAddressTowards(coordinator).value_or(LoopbackAddress());
  if (!has_other_nodes || !IsLoopback(address)) return address;
  return LocalAddressTowards({kAnywhere, 9}).value_or(std::move(address));
}

absl::StatusOr<MemberPlace> ParseMembership(const v1::CoordinatorMessage& message,
                                            const v1::ProcessSets& sets) {
  const v1::Membership& membership = message.membership();
  std::vector<NodeRun> runs;
  int64_t ranks = 0;
  for (const v1::NodeRun& run : membership.nodes()) {
    if (run.nodes() < 1 || run.ranks_per_node() < 1)
      return absl::InternalError("coordd sent a membership with an empty run of nodes");
    runs.push_back({run.nodes(), run.ranks_per_node()});
    ranks += int64_t{run.nodes()} * run.ranks_per_node();
    if (ranks > kMaxJobRanks) {
      return absl::InternalError(absl::StrCat("coordd sent a membership of ", ranks,
                                              " ranks, expected at most ", kMaxJobRanks));
    }
  }
  if (membership.rank() < 0 || membership.rank() >= membership.size() ||
      ranks != membership.size() || message.generation() < 1) {
    return absl::InternalError(absl::StrCat("coordd sent a membership of rank ", membership.rank(),
                                            " of ", membership.size(), " in generation ",
                                            message.generation(), " with nodes for ", ranks,
                                            " ranks, which do not fit together"));
  }
  if (const absl::Status valid = CheckProcessSets(sets, membership.size()); !valid.ok())
    return absl::InternalError(absl::StrCat("coordd sent ", valid.message()));
  int64_t nodes = 0;
  for (const v1::NodeRun& run : membership.nodes()) nodes += run.nodes();
  COORDD_ASSIGN_OR_RETURN(std::vector<NodeDomains> levels, LevelsOf(membership, nodes));
  MemberPlace place{
      {}, GroupLayout(Rank{membership.rank()}, std::move(runs), std::move(levels)), "", {}};
  place.placement.generation = Generation{message.generation()};
  place.placement.rank = membership.rank();
  place.placement.size = membership.size();
  place.placement.local_rank = membership.local_rank();
  place.placement.local_size = membership.local_size();
  place.placement.cross_rank = membership.cross_rank();
  place.placement.cross_size = membership.cross_size();
  place.placement.homogeneous = true;
  place.placement.nodes = static_cast<int32_t>(nodes);
  for (const v1::NodeRun& run : membership.nodes())
    place.placement.homogeneous &= run.ranks_per_node() == membership.nodes(0).ranks_per_node();
  place.store_prefix = membership.store_prefix();
  place.state.epoch = Epoch{message.epoch()};
  place.state.generation = Generation{message.generation()};
  place.state.rank = Rank{membership.rank()};
  place.state.size = membership.size();
  const absl::Duration heartbeat = membership.has_heartbeat_interval()
                                       ? FromProto(membership.heartbeat_interval())
                                       : kDefaultHeartbeat;
  place.state.heartbeat_interval = std::max(heartbeat, kMinHeartbeat);
  place.state.lease = std::max(FromProto(membership.lease()), 2 * place.state.heartbeat_interval);
  place.state.received_sequence = message.sequence();
  place.state.cluster_id = membership.cluster_id();
  place.state.session = membership.session();
  place.state.process_sets = sets;
  place.state.slots = membership.slots();
  place.state.named_sets = membership.named_sets();
  return place;
}

}  // namespace coordd
