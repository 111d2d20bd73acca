// Who has which lane numbers of a generation. PURE
//
// A lane is a queue of collectives, and its number is part of the tag of each message that its
// collectives send (worker/interfaces/transport.h), which has room for kLaneNumbers of them:
//
//   0                      process sets, by their numbers    common/protocol/protocol_bounds.h
//   kFirstPairLane         sends and receives of comms, by pairs of ranks
//   kFirstScheduleLane     schedules that coordd has frozen  common/protocol/protocol_bounds.h
//   kFirstDeviceLane       process sets, for tensors that NCCL could carry
//   kFirstExchangeLane     hierarchical allreduces, between nodes
//   kFirstCommLane         comms
//   kEndOfPeerLane         the message that no rank ever sends
#pragma once

#include <cstdint>

#include "common/protocol/protocol_bounds.h"
#include "common/protocol/types.h"

namespace coordd {

inline constexpr int32_t kLaneNumbers = 1 << 20;

// The lanes of tensors on devices, one for each process set. No message of the protocol names them.
inline constexpr int32_t kFirstDeviceLane =
    kFirstScheduleLane + static_cast<int32_t>(kMaxSchedules);

inline constexpr LaneId kEndOfPeerLane{kLaneNumbers - 1};

inline constexpr int32_t kMaxComms = 4096;  // of one rank in one generation
inline constexpr int32_t kFirstCommLane = ToInt(kEndOfPeerLane) - kMaxComms;

// Only process sets with lower numbers have hierarchical allreduces.
inline constexpr int32_t kMaxExchangeSets = 4096;
inline constexpr int32_t kFirstExchangeLane = kFirstCommLane - kMaxExchangeSets;

// Four lanes for each two ranks, by the sum of these: of one rank no two pairs have the same.
inline constexpr int32_t kFirstPairLane = 1 << 18;
inline constexpr int32_t kMaxPairSum = (kFirstScheduleLane - kFirstPairLane) / 4;

static_assert(kProcessSetNumbers <= kFirstPairLane);
static_assert(kFirstDeviceLane + kProcessSetNumbers <= kFirstExchangeLane);
static_assert(kMaxExchangeSets <= kProcessSetNumbers);

// Returns the lane on the host's data plane of what NCCL could carry, in a process set.
inline LaneId DeviceLane(ProcessSetId process_set) {
  return LaneId{kFirstDeviceLane + ToInt(process_set)};
}

// Returns the lane of a process set's hierarchical allreduces; the group of these has the same
// number. REQUIRES: the set's number is below kMaxExchangeSets.
inline LaneId ExchangeLane(ProcessSetId process_set) {
  return LaneId{kFirstExchangeLane + ToInt(process_set)};
}

}  // namespace coordd
