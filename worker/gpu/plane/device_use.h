// What coordd is told about the GPU of a rank and about the way of its tensors. PURE.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/protocol/types.h"
#include "coordd/v1/types.pb.h"
#include "worker/gpu/cuda/device_runtime.h"
#include "worker/gpu/nccl/device_claim.h"

namespace coordd {

// What is known of the devices of one generation, as far as it has come.
struct DeviceFacts {
  std::optional<DeviceIdentity> device;  // of the first tensor
  std::string nccl, no_nccl;             // version, or why there is none
  std::string mps;                       // LookForMps
  std::string net_plugin;                // that NCCL has loaded; empty: none, or not known yet
  std::map<ProcessSetId, absl::StatusOr<DeviceDecision>> decisions;
};

// Within the bounds of the protocol, whatever is in it.
v1::DeviceUse DescribeDeviceUse(const DeviceFacts& facts);

}  // namespace coordd
