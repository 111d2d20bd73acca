#include "client/coordrun/wire/torch_roster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/net/address.h"
#include "common/protocol/topology.h"

namespace coordd {
namespace {

// Whether coordd would take these labels: all have as many, and those of a node are equal.
bool LabelsFit(const std::vector<TopologyMember>& members) {
  return std::all_of(members.begin(), members.end(), [&members](const TopologyMember& member) {
    return CheckTopology(member, members[0]).ok();
  });
}

}  // namespace

void TorchRoster::Take(const std::vector<int32_t>& workers, const AgentReport& report) {
  if (wanted_) agents_[report.number()] = {workers, report};
}

const TorchRoster::Agent* TorchRoster::AgentOf(int32_t worker) const {
  for (const auto& [number, agent] : agents_) {
    if (std::find(agent.workers.begin(), agent.workers.end(), worker) != agent.workers.end())
      return &agent;
  }
  return nullptr;
}

void TorchRoster::Arrange() {
  std::vector<int32_t> agent_of(static_cast<size_t>(np_), -1);
  for (const auto& [number, agent] : agents_) {
    for (const int32_t worker : agent.workers)
      if (worker < np_) agent_of[static_cast<size_t>(worker)] = number;
  }
  std::vector<TopologyMember> members;
  std::vector<int32_t> workers;  // of the members
  for (int32_t worker = 0; worker < np_; ++worker) {
    const int32_t number = agent_of[static_cast<size_t>(worker)];
    if (number < 0) continue;  // its host was set aside
    workers.push_back(worker);
    const AgentReport& report = agents_[number].report;
    members.push_back({.worker_id = "",
                       .node_id = report.node(),
                       .labels = absl::StrSplit(report.labels(), '/', absl::SkipEmpty()),
                       .launcher_rank = worker});
  }
  if (members.empty()) return;
  if (!LabelsFit(members))
    for (TopologyMember& member : members) member.labels.clear();
  const Topology topology = OrderRanks(members);
  int32_t group = -1;
  for (size_t rank = 0; rank < topology.places.size(); ++rank) {
    const Place& place = topology.places[rank];
    const size_t member = topology.member_of_rank[rank];
    const int32_t worker = workers[member];
    if (place.local_rank == 0) ++group;
    groups_[members[member].node_id] = group;
    in_order_ = in_order_ && worker == place.rank.value;
    places_[worker] = {.rank = place.rank.value,
                       .size = place.size,
                       .local_rank = place.local_rank,
                       .local_size = place.local_size,
                       .group_rank = group};
  }
  master_ = agent_of[static_cast<size_t>(workers[topology.member_of_rank[0]])];
}

// What is known of it before coordd has made it a member: its slot, as COORDD_RANK is.
TorchPlace TorchRoster::LatecomersPlace(int32_t worker, const Agent& agent) const {
  const auto found = groups_.find(agent.report.node());
  return {
      .rank = worker,
      .size = std::max(np_, worker + 1),
      .local_rank = agent.report.first_local(),
      .local_size = std::max(agent.report.local_size(), agent.report.first_local() + 1),
      .group_rank = found != groups_.end() ? found->second : static_cast<int32_t>(groups_.size())};
}

std::vector<v1::TorchPlaceOrder> TorchRoster::PlacesFor(const std::vector<int32_t>& workers) const {
  std::vector<v1::TorchPlaceOrder> places;
  if (!wanted_) return places;
  for (const int32_t worker : workers) {
    const auto known = places_.find(worker);
    const Agent* agent = AgentOf(worker);
    if (known != places_.end()) {
      places.push_back(PlaceOrder(worker, known->second));
    } else if (agent != nullptr) {
      places.push_back(PlaceOrder(worker, LatecomersPlace(worker, *agent)));
    }
  }
  return places;
}

std::vector<AgentOrder> TorchRoster::OrdersFor(const std::vector<int32_t>& workers,
                                               bool shared) const {
  std::vector<AgentOrder> orders;
  if (!shared || !in_order_) {  // Slurm tells its tasks the same
    for (v1::TorchPlaceOrder& place : PlacesFor(workers))
      *orders.emplace_back().mutable_place() = std::move(place);
  }
  if (const auto master = Master()) *orders.emplace_back().mutable_master() = *master;
  return orders;
}

std::optional<v1::TorchMasterOrder> TorchRoster::Master() const {
  const auto found = agents_.find(master_);
  if (!wanted_ || found == agents_.end() || found->second.report.master_port() == 0)
    return std::nullopt;
  const AgentReport& report = found->second.report;
  const std::string coordinator = ParseHostPort(report.coordinator()).value_or(HostPort()).host;
  // On coordd's own machine: the others know it by the address at which they have reached coordd.
  const bool with_coordinator =
      report.address().empty() || report.address() == coordinator || IsLoopback(report.address());
  return MasterOrder({with_coordinator ? kMasterAtCoordinator : report.address(),
                      static_cast<uint16_t>(report.master_port())});
}

void TorchRoster::TakePort(int32_t agent, uint16_t port) {
  if (const auto found = agents_.find(agent); found != agents_.end())
    found->second.report.set_master_port(port);
}

void TorchRoster::Lose(int32_t agent) {
  agents_.erase(agent);
  if (master_ == agent) master_ = agents_.empty() ? -1 : agents_.begin()->first;
}

}  // namespace coordd
