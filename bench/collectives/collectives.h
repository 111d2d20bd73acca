// Collectives between real processes, measured as the peers' programs are. (io)
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/collectives/board.h"

namespace coordd::bench {

struct CollectivesOptions {
  CollectivesPlan plan;
  std::string transport = "auto";    // COORDD_TRANSPORT
  int32_t nodes = 1;                 // that the ranks take themselves to be on
  std::string algorithm = "auto";    // COORDD_HOST_ALGORITHM
  std::string on_failure = "raise";  // COORDD_ON_FAILURE
  bool on_gpus = false;   // of coordd and of NCCL alone, in turns (bench/gpu/gpu_rank.cc)
  bool launches = false;  // of these only the times of the host, by schedule
  std::string gpu_algorithm = "auto";
  bool share_gpu = false;  // ranks may be on one, each as on a host of its own: NCCL uses sockets
  std::string timeline;    // COORDD_TIMELINE; empty: nothing is recorded
  int32_t repeats = 1;
  // Instead of coordd: what a shell starts, which brings all ranks into being, and its name in the
  // rows. The first two arguments of each: $COORDD_BENCH_BOARD and $COORDD_BENCH_PEER.
  std::string command;
  std::string peer = "coordd";
};

// Names of columns, as the programs in bench/peers print them.
extern const char* const kCollectivesColumns;
// Of those on GPUs; lines that begin with "# " are bars.
extern const char* const kGpuColumns;

// The bits of a list such as "allreduce,barrier"; empty: all. INVALID_ARGUMENT: what is none.
absl::StatusOr<uint32_t> OperationsFrom(const std::string& list);

// INVALID_ARGUMENT: in one sentence, what of it cannot be measured.
absl::Status CanBeMeasured(const CollectivesOptions& options);

// Starts a coordd and, `repeats` times, a job of that many ranks (bench/collectives/rank.cc);
// `take` gets each row, without its end of line, as it is there. UNAVAILABLE: a rank failed.
absl::Status MeasureCollectives(const CollectivesOptions& options,
                                absl::FunctionRef<void(absl::string_view row)> take);

// {"transport": ..., ..., "rows": [{"op": ..., ...}]}.
absl::StatusOr<nlohmann::json> CollectivesAsJson(const CollectivesOptions& options);

}  // namespace coordd::bench
