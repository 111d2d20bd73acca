// What an error of NCCL says: the call, NCCL's own words, where it happened, and what usually
// helps. PURE.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/protocol/types.h"

namespace coordd {

// Where a communicator is.
struct NcclPlace {
  std::string job;   // for people
  std::string name;  // CommunicatorName of it, as long as NCCL refers to that
  ProcessSetId group;
  int32_t rank = 0, size = 1;  // in the group, or of its ranks on this node
  int32_t node = -1;           // of those alone, on the group's so many'th node; -1: of all
  bool for_graphs = false;     // what programs capture
  int32_t device = 0;
  std::string device_uuid;
  std::string nccl_version, driver_version;  // "2.28.9", "13.0"
  std::string interface;                     // NCCL_SOCKET_IFNAME; empty: NCCL chose
};

// What NCCL calls it in its log: "coordd/JOB/SET", and "/node2" or "/graphs" behind that of some;
// the same on all ranks, of printable characters, at most kMaxCommunicatorName of them.
inline constexpr size_t kMaxCommunicatorName = 63;
std::string CommunicatorName(const NcclPlace& place);

// `error` is NCCL's sentence for the code, `detail` its last error text; the latter may be empty.
struct NcclFailure {
  absl::string_view call;
  absl::string_view error;
  absl::string_view detail;
};

// One sentence: "ncclCommInitRankConfig: invalid usage: Duplicate GPU detected (rank 1 of 4,
// process set 0, device 0 GPU-…, NCCL 2.28.9, driver 13.0, interfaces: NCCL's choice): hint".
std::string NcclErrorText(const NcclFailure& failure, const NcclPlace& place);

// What usually helps against an error with these words; empty: nothing is known.
absl::string_view NcclHint(absl::string_view error, absl::string_view detail);

}  // namespace coordd
