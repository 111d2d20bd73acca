// What NCCL may send over from this machine: what is there, and what its variables leave of it.
// (io)
#pragma once

#include <string>
#include <vector>

#include "common/base/environment.h"

namespace coordd {

struct GpuNetwork {
  bool rdma = false;         // an active port (NCCL_IB_DISABLE, NCCL_NET)
  bool unused_rdma = false;  // one that these keep NCCL from, with no plugin named instead
  bool peer_memory = false;  // a kernel module lets RDMA read the memory of NVIDIA's GPUs
  bool dma_buf = true;       // or DMA-BUF may, where the device has it (NCCL_DMABUF_ENABLE)
  bool gpu_direct = true;    // NCCL may use either (NCCL_NET_GDR_LEVEL)
  bool peer_to_peer = true;  // GPUs may reach each other (NCCL_P2P_DISABLE, NCCL_P2P_LEVEL)
};

// Looks at this machine. `sys`: where the kernel's /sys is.
GpuNetwork LookForGpuNetwork(const Environment& environment, const std::string& sys = "/sys");

// The RDMA ports that are up: "mlx5_0 port 1 (InfiniBand)".
std::vector<std::string> ActiveRdmaPorts(const std::string& sys = "/sys");

// Names under which NCCL looks for a plugin that is its network (NCCL_NET_PLUGIN); empty: for none.
std::vector<std::string> NetPluginNames(const Environment& environment);
// The first of them that this process has loaded; empty: none. NCCL loads it with the first
// communicator.
std::string LoadedNetPlugin(const Environment& environment);

}  // namespace coordd
