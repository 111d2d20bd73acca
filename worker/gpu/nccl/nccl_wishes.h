// What users want of coordd's communicators, beyond what NCCL's own variables say of all of a
// process. PURE.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/gpu/nccl/nccl_api.h"

namespace coordd {

// Members of ncclConfig_t, by NCCL's names: "minCTAs=4,maxCTAs=16,netName=IB". What is not named
// NCCL chooses.
struct NcclWishes {
  static constexpr int kMaxCtas = 64;           // NCCL's own bounds
  static constexpr int kMaxClusterSize = 8;     // of blocks, on GPUs of compute capability 9.0 on
  static constexpr int kMaxTrafficClass = 255;  // of RDMA: a byte
  static constexpr int kVersionTrafficClass = 22600;

  int cga_cluster_size = NcclConfig::kUndefined;
  int min_ctas = NcclConfig::kUndefined;
  int max_ctas = NcclConfig::kUndefined;
  int traffic_class = NcclConfig::kUndefined;
  std::string net_name;

  // INVALID_ARGUMENT: what is wrong with which of them, as one sentence.
  static absl::StatusOr<NcclWishes> Parse(absl::string_view text);

  // What this version of NCCL knows of them. They outlive the configuration.
  void PutInto(NcclConfig& config, int version) const;
  // Of which it knows nothing: "trafficClass"; empty: it knows all.
  absl::string_view UnknownTo(int version) const;

  friend bool operator==(const NcclWishes&, const NcclWishes&) = default;
};

}  // namespace coordd
