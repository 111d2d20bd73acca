// Which ready tensors travel as one message.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/tensor_spec.h"

namespace coordd {

// Tensors start at multiples of this in a fused buffer (worker/execute/fusion_layout.h): a cache
// line, and what vector instructions and NCCL like best.
inline constexpr int64_t kFusionAlignmentBytes = 64;

struct FusionOptions {
  int64_t max_batch_bytes = int64_t{128} << 20;
  // Host tensors of this size travel alone. Packing and unpacking a mebibyte takes some 200 us of a
  // core's memory bandwidth, a batch of its own some 20 us; and what is alone is reduced where it
  // lies.
  int64_t alone_bytes = int64_t{1} << 20;
  // Names per batch: 512 names of 512 bytes stay far below gRPC's bound of a message.
  int64_t max_batch_tensors = 512;
};

struct FusionInput {
  const TensorSpec* spec = nullptr;
  int64_t size_bytes = 0;  // that this tensor takes in the fused buffer of a rank
};

// Batches of indices into `ready`, in the order of their first tensors. Greedy: a tensor joins the
// last batch of its kind, dtype, op, factors, process set, root and memory if that has room,
// otherwise it opens a new one. None is split and none is lost; tensors of one key that travel
// together keep their order. A large tensor is a batch of its own, and so is every alltoall and
// barrier.
std::vector<std::vector<size_t>> PlanFusion(absl::Span<const FusionInput> ready,
                                            const FusionOptions& options);

}  // namespace coordd
