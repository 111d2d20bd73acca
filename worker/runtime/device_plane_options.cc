#include "worker/runtime/device_plane_options.h"

#include <algorithm>

#include "common/launch/host_identity.h"
#include "common/machine/gpu_network.h"
#include "common/machine/gpu_sharing.h"

namespace coordd {

DevicePlaneOptions DevicePlaneOptionsOf(const WorkerOptions& worker, Generation generation) {
  DevicePlaneOptions options;
  options.generation = ToInt(generation);
  options.default_device = std::max(DeviceOf(worker.launch), 0);
  options.fusion_buffer_bytes = worker.fusion_buffer_bytes;
  options.host = ThisHost(worker.node_id).hostname;
  options.rules = worker.device_rules;
  options.backend.job = worker.job;
  options.backend.register_buffers = worker.register_gpu_buffers;
  options.backend.gate_limit = worker.gpu_gate_limit;
  options.backend.shrink = worker.shrink_gpu_communicators;
  options.direct = worker.direct_gpu_communicators;
  options.symmetric_windows = worker.symmetric_gpu_windows;
  options.environment = worker.nccl_environment;
  options.network = LookForGpuNetwork(options.environment);
  options.mps = LookForMps(options.environment);
  const TransportChoice transport = worker.transport;
  options.host_uses_rdma =
      (transport == TransportChoice::kAuto || transport == TransportChoice::kTcp ||
       transport == TransportChoice::kUcx) &&
      worker.ucx_environment.count("UCX_TLS") == 0;
  const auto machine = options.environment.find("NCCL_HOSTID");
  options.machine = machine == options.environment.end() ? options.host : machine->second;
  return options;
}

}  // namespace coordd
