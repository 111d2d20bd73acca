// What the ranks of a process set tell each other about their GPUs before their first collective
// there, and what follows from it. PURE.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace coordd {

// How NCCL's part in an allreduce of several machines is cut: one communicator of all ranks, or one
// for each machine and the host's data plane between them (docs/design/nccl.md, Hierarchy).
enum class GpuAlgorithm { kAuto, kFlat, kHierarchical };
absl::string_view Name(GpuAlgorithm algorithm);  // "auto", "flat", "hierarchical"
std::optional<GpuAlgorithm> GpuAlgorithmFromName(absl::string_view name);

// A communicator of all ranks that this rank has from the generation before.
struct KeptClaim {
  int64_t generation = 0;  // whose it was
  int32_t rank = 0, size = 1;
  int64_t batches = 0;  // that it has carried
  friend bool operator==(const KeptClaim&, const KeptClaim&) = default;
};

// One rank's.
struct DeviceClaim {
  int32_t rank = 0;          // in the job
  std::string host;          // for people
  std::string uuid;          // of the GPU that its collectives use
  std::string nccl;          // version, "2.28.9"; empty: it has none, and
  std::string why_not;       // says why
  bool rdma = false;         // an active RDMA port that NCCL may use
  bool float8 = false;       // its NCCL reduces float8 on its GPU (NcclReducesFloat8)
  int64_t window_bytes = 0;  // of memory that can become a symmetric window; 0: not wanted, or none
  GpuAlgorithm algorithm = GpuAlgorithm::kAuto;
  bool rdma_for_host = false;  // a port that NCCL may not use, and the host's data plane does
  std::string machine;         // as NCCL tells machines apart: NCCL_HOSTID, or the host
  std::optional<KeptClaim> kept;
  bool direct = false;     // its NCCL would launch on threads of its own, and can do without
  bool multicast = false;  // switches may reduce for its GPU
  bool registers = false;  // it wants memory registered with NCCL, which can
  // What decides nothing, and is told: what lies between them.
  bool gpu_direct = false;  // RDMA may read the GPU's memory
  struct Neighbour {
    std::string uuid;
    bool nvlink = false;
    friend bool operator==(const Neighbour&, const Neighbour&) = default;
  };
  std::vector<Neighbour> neighbours;  // GPUs that this process sees besides its own; the first 32
};

// At most kMaxClaimBytes, whatever is in it.
inline constexpr size_t kMaxClaimBytes = 4096;
std::string EncodeClaim(const DeviceClaim& claim);
// INTERNAL: not something that EncodeClaim makes.
absl::StatusOr<DeviceClaim> DecodeClaim(absl::string_view text);

// What lies between ranks of one machine.
enum class NodeLinks {
  kNone,        // each is alone on its machine
  kNvLink,      // between any two
  kSomeNvLink,  // between some
  kNoNvLink,
  kUnknown,  // not all see each other's GPUs
};

struct DeviceDecision {
  bool nccl = false;
  std::string why_not;  // which rank lacks it, and why: then all stage through host memory
  // With NCCL, what it has to travel over.
  NodeLinks links = NodeLinks::kNone;
  bool several_machines = false;
  bool rdma = false, gpu_direct = false;  // on every rank
  bool float8 = false;                    // every rank's NCCL reduces it
  bool windows = false;                   // every rank makes its fusion buffer a symmetric window
  // How many ranks of the set are on each machine, following each other, where allreduces are
  // hierarchical; 0: flat.
  int32_t ranks_per_node = 0;
  std::string why_flat = {};  // where a hierarchy was asked for
  // Not empty: every rank has kept the communicator of this generation, and all shrink it by these
  // ranks of it.
  std::vector<int32_t> excluded = {};
  int64_t shrinks_of = 0;
  bool direct = false;     // communicators launch on the thread that calls
  bool multicast = false;  // on some rank: switches may reduce what is large (NVLS)
  bool registers = false;  // memory is registered, by every rank
  friend bool operator==(const DeviceDecision&, const DeviceDecision&) = default;
};

// A change of more members than this makes a new communicator: the decision is one short text.
inline constexpr size_t kMaxExcluded = 64;

struct DeviceRules {
  bool allow_shared_gpu = false;  // COORDD_ALLOW_SHARED_GPU=1: for tests, with NCCL_HOSTID
  bool require_rdma = false;      // COORDD_REQUIRE_RDMA=1: NCCL over TCP is an error
  GpuAlgorithm algorithm = GpuAlgorithm::kAuto;  // COORDD_GPU_ALGORITHM
  bool exchanges = true;  // the set has a lane of the host's for what goes between machines
};

// Equal on whatever rank it is made. FAILED_PRECONDITION, a sentence that names the ranks: two that
// use one GPU, two versions of NCCL, two algorithms, or, where it is required, RDMA that a rank
// lacks.
absl::StatusOr<DeviceDecision> DecideOnDevices(absl::Span<const DeviceClaim> claims,
                                               const DeviceRules& rules);

// For the store: the decision or the error.
std::string EncodeDecision(const absl::StatusOr<DeviceDecision>& decision);
absl::StatusOr<DeviceDecision> DecodeDecision(absl::string_view text);

}  // namespace coordd
