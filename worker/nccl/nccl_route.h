// Which tensors NCCL could carry. PURE: every rank says the same of a tensor, whatever it has.
#pragma once

#include "common/protocol_bounds.h"
#include "common/tensor_spec.h"
#include "common/types.h"
#include "worker/comm_numbers.h"
#include "worker/nccl/device_claim.h"

namespace coordd {

// On a device, and of a kind, type and operator that some NCCL and our kernels have. 16-bit
// integers are reduced by no NCCL; an average of integers truncates what has to be divided exactly,
// which the host does. Such tensors are staged.
bool FitsNccl(const TensorSpec& spec);

// Whether NCCL carries a tensor that FitsNccl, by what the ranks of its set have agreed on: not
// every NCCL reduces float8 on every GPU.
bool CarriedByNccl(const TensorSpec& spec, const DeviceDecision& decision);

// Lanes of the host's data plane that no message names, one for each process set: behind those of
// schedules.
inline constexpr int32_t kFirstDeviceLane =
    kFirstScheduleLane + static_cast<int32_t>(kMaxSchedules);

// The lane on the host's data plane of what NCCL could carry, in a process set.
inline LaneId DeviceLane(ProcessSetId process_set) {
  return LaneId{kFirstDeviceLane + ToInt(process_set)};
}

// The lanes, and the groups of the same numbers, of hierarchical allreduces between nodes: of the
// process sets with lower numbers. Below those of comms.
inline constexpr int32_t kMaxExchangeSets = 4096;
inline constexpr int32_t kFirstExchangeLane = kFirstCommLane - kMaxExchangeSets;

// REQUIRES: its number is below kMaxExchangeSets.
inline LaneId ExchangeLane(ProcessSetId process_set) {
  return LaneId{kFirstExchangeLane + ToInt(process_set)};
}

}  // namespace coordd
