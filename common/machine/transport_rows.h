// What collectives may travel over on this machine, for `coordctl check-build`. (io)
#pragma once

#include <string>
#include <vector>

#include "common/base/environment.h"
#include "common/machine/build_info.h"

namespace coordd {

// What host memory travels over between nodes, as far as this rank has a say, and whether it is
// encrypted; then, for GPUs, NVLink, RDMA, GPUDirect RDMA, NCCL's network plugin, and whether
// processes share a GPU, in this order;
// nothing of it is built in.
// Opens CUDA's driver and the plugin. `sys`: where the kernel's /sys is; `driver`: for tests.
std::vector<Component> TransportComponents(const Environment& environment,
                                           const std::string& sys = "/sys",
                                           const std::string& driver = "libcuda.so.1");

}  // namespace coordd
