// Whether this machine has RDMA. (io)
#pragma once

#include <string>

#include "common/environment.h"

namespace coordd {

// A port that is up under `sysfs` and that NCCL has not been told to leave alone
// (NCCL_IB_DISABLE=1, NCCL_NET=Socket).
bool HasActiveRdmaPort(const Environment& environment,
                       const std::string& sysfs = "/sys/class/infiniband");

}  // namespace coordd
