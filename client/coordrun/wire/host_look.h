// What an agent finds out about its host. (io)
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/coordrun/wire/agent_messages.h"
#include "common/base/environment.h"

namespace coordd {

// The first of `addresses` (numeric host:port) in their order to which a TCP connection can be made
// within `timeout`. UNAVAILABLE: says what became of each.
absl::StatusOr<std::string> FirstReachable(const std::vector<std::string>& addresses,
                                           absl::Duration timeout);

// The cores that this process may use.
void LookAtCores(AgentReport* report);
// The size of /dev/shm.
void LookAtSharedMemory(AgentReport* report);
// Cores, /dev/shm, GPUs and versions of libraries into `report`. Opens UCX and NCCL for the time of
// the call.
void LookAtHost(const Environment& environment, AgentReport* report);

// How many GPUs CUDA_VISIBLE_DEVICES names, when it is set: "0,1" is 2, "" and "-1" are 0.
int32_t VisibleGpus(const Environment& environment, size_t in_machine);

}  // namespace coordd
