// What an agent knows of torch's variables of its workers (torch_variables.h). (io: a port)
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/coordrun/plan/torch_variables.h"
#include "client/coordrun/process/master_port.h"
#include "client/coordrun/wire/agent_messages.h"
#include "common/base/environment.h"

namespace coordd {

class AgentTorch {
 public:
  // Adds what coordrun wants to know to the report. `environment`: of the first worker. Nothing
  // with --no-torch-env.
  void Begin(const AgentOrders& orders, const Environment& environment, AgentReport* report);

  // Whether the order was one of this kind.
  bool Obey(const AgentOrder& order);
  // For workers that are started from now on. `environment`: of the worker without them. Empty with
  // --no-torch-env.
  Environment VariablesOf(int32_t worker, const Environment& environment) const;
  // The variables of torchrun that a change of members changes.
  Environment MasterOf() const;

  // Another one, which is free; 0: there is none.
  uint16_t PickPort();

 private:
  int32_t ThreadsFor(const Environment& environment) const;

  std::vector<std::string> names_;
  std::string port_range_;
  int32_t cores_ = 0;        // that its workers may use
  bool is_task_ = false;     // one of Slurm's, each of which has cores of its own, if so bound
  int32_t group_ = 0;        // unless coordrun says otherwise
  std::string coordinator_;  // host of the address at which coordd is reached
  std::map<int32_t, TorchPlace> places_;
  TorchMaster master_;
  std::optional<MasterPort> port_;
};

}  // namespace coordd
