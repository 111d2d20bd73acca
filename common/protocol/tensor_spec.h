// What a rank says about a tensor that it submits: the unit of agreement between ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/protocol/kind_traits.h"
#include "common/protocol/types.h"

namespace coordd {

// Bounds that Validate checks, on the worker before anything is sent and on coordd before anything
// is stored.
inline constexpr int64_t kMaxTensorNameBytes =
    512;                                      // torch's longest parameter names are about 150
inline constexpr int64_t kMaxDimensions = 8;  // torch collectives beyond 6 are unknown in the field
inline constexpr int64_t kMaxTensorBytes =
    int64_t{1} << 44;  // 16 TiB: keeps every product of sizes within int64
inline constexpr int64_t kMaxRefusalBytes = 1024;
inline constexpr int32_t kMaxGroupSize =
    65536;  // one group per model; the largest known have some 10,000 tensors

// The name of a join on every rank: there is one at a time.
inline constexpr char kJoinName[] = "join";

struct TensorSpec {
  std::string name;
  CollectiveKind kind = CollectiveKind::kAllreduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kNone;  // kNone unless the kind reduces
  std::vector<int64_t> shape;     // elements per dimension; {}: one element
  int32_t root_rank = 0;          // broadcast, reduce and gather: rank in the job
  double prescale_factor = 1.0;
  double postscale_factor = 1.0;
  ProcessSetId process_set;
  std::string group;  // empty: alone
  int32_t group_size = 0;
  MemoryKind memory = MemoryKind::kHost;
  int32_t peer_rank = 0;  // send: the receiver; receive: the sender. Rank in the job
  // Why this rank's process has refused the call: it is no collective, and fails on all ranks. A
  // barrier. Empty: it is one.
  std::string refused;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

int64_t NumElements(absl::Span<const int64_t> shape);
// The size of this rank's input, in bytes.
int64_t SizeBytes(const TensorSpec& spec);
// Whether the two may: they agree in everything that is done once for a batch.
bool FusesWith(const TensorSpec& a, const TensorSpec& b);

std::string ShapeString(absl::Span<const int64_t> shape);  // "[3, 224, 224]"
std::string ToString(const TensorSpec& spec);  // "allreduce float32 [3, 4] sum": for messages

// INVALID_ARGUMENT, in one sentence that names the tensor, what was found and what was expected.
absl::Status Validate(const TensorSpec& spec, int32_t world_size);

// Whether two ranks mean the same collective. INVALID_ARGUMENT names the tensor, both ranks and
// both values. The first dimension of an allgather, gather or alltoall may differ. A send and the
// receive that names its sender are the same; two sends, or two receives, are not.
absl::Status CheckSame(const TensorSpec& first, Rank first_rank, const TensorSpec& second,
                       Rank second_rank);
// Whether one rank calls the same collective again; but for the first dimension where that may
// differ.
bool SameCall(const TensorSpec& a, const TensorSpec& b);

}  // namespace coordd
