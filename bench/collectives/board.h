// What the ranks of `coordd-bench collectives` share beside what they measure: a plan, a barrier,
// and the moments at which each was in and out of an operation. Lies in memory that all have
// mapped.
#pragma once

#include <atomic>
#include <cstdint>

namespace coordd::bench {

// In the order, and under the names, of the programs that measure the peers.
enum Operation : int32_t {
  kAllreduce,
  kAllgather,
  kBroadcast,
  kReduceScatter,
  kAlltoall,
  kBarrier,
  kReduce,
  kGather,
  kOperations
};
inline constexpr const char* kOperationNames[kOperations] = {
    "allreduce", "allgather", "broadcast", "reduce_scatter",
    "alltoall",  "barrier",   "reduce",    "gather"};

enum class Path : int32_t {
  kBare,        // calls of a comm; of what it has not, as kScheduled
  kScheduled,   // named, under one name again and again
  kNegotiated,  // named, under a name that nobody has seen
};

// Plain values.
struct CollectivesPlan {
  int32_t ranks = 2;
  int32_t cores = 2;        // rank r is pinned to core r modulo this
  uint32_t operations = 0;  // bits
  int64_t bytes_min = 4;
  int64_t bytes_max = int64_t{64} << 20;
  bool out_of_place = true, in_place = true;
  bool registered = false;
  Path path = Path::kBare;
  double seconds = 0.1;  // of each cell and pass
  bool stale = false;    // buffers are left alone between operations
  int32_t offset = 0;    // bytes between a page's beginning and that of a private buffer
};

inline constexpr int32_t kMaxBenchRanks = 64;
inline constexpr int64_t kMaxIterations = 6000;

struct RankMoments {
  int64_t in_ns[kMaxIterations], out_ns[kMaxIterations];
  bool interrupted[kMaxIterations];  // another thread had the core meanwhile
};

// Zeros are its first state.
struct Board {
  CollectivesPlan plan;
  alignas(64) std::atomic<int32_t> arrived;
  alignas(64) std::atomic<uint32_t> rounds;
  alignas(64) std::atomic<int64_t> told;  // by rank 0
  alignas(64) RankMoments moments[kMaxBenchRanks];
};

}  // namespace coordd::bench
