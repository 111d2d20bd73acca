// Who of the workers of several hosts becomes which rank, and where rank 0's store is: what
// torch_variables.h needs and only the agents together know. PURE
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/coordrun/plan/torch_variables.h"
#include "client/coordrun/wire/agent_messages.h"

namespace coordd {

class TorchRoster {
 public:
  // `wanted`: false: nothing is said to anybody. `np`: workers of the plan, 0 to np - 1.
  TorchRoster(bool wanted, int32_t np) : wanted_(wanted), np_(np) {}

  // What an agent with these workers has said.
  void Take(const std::vector<int32_t>& workers, const AgentReport& report);

  // When all have answered: ranks are those that coordd will give, which keeps the ranks of a node
  // together, in the order of topology labels and then of workers.
  void Arrange();

  // Orders for the agent, or all the agents, of `workers`, before these are started: their places,
  // unless they are what the agents know without us, and the master.
  std::vector<AgentOrder> OrdersFor(const std::vector<int32_t>& workers, bool shared) const;
  // The places alone, and the master alone; nothing: there is none.
  std::vector<v1::TorchPlaceOrder> PlacesFor(const std::vector<int32_t>& workers) const;
  std::optional<v1::TorchMasterOrder> Master() const;

  // A member is lost or will come: rank 0's store needs another port. The number of the agent that
  // is to pick one (PortOrder); -1: none.
  int32_t master_agent() const { return wanted_ ? master_ : -1; }
  void TakePort(int32_t agent, uint16_t port);
  // The agent is gone: the first of the others takes its part.
  void Lose(int32_t agent);

 private:
  struct Agent {
    std::vector<int32_t> workers;
    AgentReport report;
  };

  TorchPlace LatecomersPlace(int32_t worker, const Agent& agent) const;
  const Agent* AgentOf(int32_t worker) const;

  // Constant after construction.
  const bool wanted_;
  const int32_t np_;

  std::map<int32_t, Agent> agents_;        // by number; those that are not lost
  std::map<int32_t, TorchPlace> places_;   // by worker
  std::map<std::string, int32_t> groups_;  // number of each node, by its identity
  bool in_order_ = true;                   // each worker has the rank of its number
  int32_t master_ = -1;                    // number of the agent of rank 0's host
};

}  // namespace coordd
