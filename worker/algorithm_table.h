// Which algorithm carries out a collective: one table, read in order. PURE.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/types.h"
#include "worker/collective_backend.h"
#include "worker/collective_schedule.h"

namespace coordd {

enum class Algorithm : uint8_t {
  kLocalCopy,  // one rank
  kRecursiveDoubling,
  kHalvingDoubling,
  kRing,
  kPairwise,
  kBinomialTree,
  kDissemination,
  kScatterGather,
  kDirect,
};
absl::string_view Name(Algorithm algorithm);  // "ring": for logs and benches

// The same on all ranks, because they agree on the arguments: `size_bytes` is the size of the whole
// vector for an allreduce or a reduce and does not count for kinds with one algorithm.
Algorithm ChooseAlgorithm(CollectiveKind kind, int64_t size_bytes, int32_t world_size);

// The schedule of `self` for valid `args` (collective_args.h). REQUIRES: `algorithm` is one for
// args.kind.
Schedule MakeSchedule(Algorithm algorithm, const CollectiveArgs& args, Rank self,
                      int32_t world_size);

}  // namespace coordd
