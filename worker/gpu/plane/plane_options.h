// Options of DevicePlane.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/environment.h"
#include "common/machine/gpu_network.h"
#include "worker/gpu/nccl/device_claim.h"
#include "worker/gpu/nccl/nccl_backend.h"

namespace coordd {

struct DevicePlaneOptions {
  int64_t generation = 0;
  int32_t default_device = 0;  // of a rank that takes part without a tensor: it has joined
  int64_t fusion_buffer_bytes = int64_t{128} << 20;
  std::string host;     // for people
  std::string machine;  // as NCCL tells machines apart
  std::string mps;      // LookForMps
  GpuNetwork network;
  bool host_uses_rdma = true;  // the host's data plane may, between nodes
  Environment environment;     // with NCCL's variables, and NVTX's
  DeviceRules rules;
  bool direct = true;              // communicators launch on the thread that calls, where NCCL can
  bool symmetric_windows = false;  // the fusion buffer is one where all ranks of a set have it so
  NcclBackendOptions backend;

  // Of one fusion buffer, with the padding between the tensors of a batch, as the executor's.
  int64_t BufferBytes() const { return fusion_buffer_bytes + (int64_t{1} << 20); }
};

}  // namespace coordd
