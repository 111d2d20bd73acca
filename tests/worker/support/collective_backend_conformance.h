// What every CollectiveBackend must do. A test program links collective_backend_conformance.cc and
// instantiates the suite with its cases:
//   INSTANTIATE_TEST_SUITE_P(Host, CollectiveBackendConformance, testing::Values(...));
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "tests/worker/support/rank_group.h"
#include "tests/worker/support/reference.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

using BackendCase = GroupCase<CollectiveBackend>;
using BackendContext = RankContext<CollectiveBackend>;

class CollectiveBackendConformance : public testing::TestWithParam<BackendCase> {
 protected:
  // Runs `body` in worlds of 1 to the case's largest.
  void InEveryWorld(const std::function<void(BackendContext&)>& body) {
    for (int32_t size = 1; size <= GetParam().max_world_size; ++size)
      RunRanks<CollectiveBackend>(GetParam(), size, body);
  }
  // Every type in every operator, but where the case says so large buffers of float32 alone.
  bool LeavesOut(DataType dtype, int64_t count) const {
    return !GetParam().large_of_every_type && count > 1000 && dtype != DataType::kFloat32;
  }
  // Failures need peers.
  bool HasPeers() const { return GetParam().max_world_size > 1; }
};

// The inputs of all ranks.
inline std::vector<Bytes> AllInputs(DataType dtype, int32_t world_size, int64_t count,
                                    int32_t salt) {
  std::vector<Bytes> inputs;
  for (int32_t r = 0; r < world_size; ++r) inputs.push_back(TestInput(dtype, r, count, salt));
  return inputs;
}

// Launches and drives to the end.
inline absl::Status RunCollective(BackendContext& context, CollectiveArgs args) {
  std::optional<absl::Status> result;
  const absl::Status launched = context.object.Launch(
      std::move(args), [&](absl::Status status) { result = std::move(status); });
  if (!launched.ok()) return launched;
  if (!context.DriveUntil([&] { return result.has_value(); })) {
    context.object.Abort();  // `result` must outlive the batch
    context.destroy();
  }
  return *result;
}

inline CollectiveArgs AllreduceArgs(DataType dtype, ReduceOp op, const Bytes& input,
                                    Bytes& output) {
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllreduce;
  args.dtype = dtype;
  args.op = op;
  args.input = input;
  args.output = absl::MakeSpan(output);
  return args;
}

// Sequence numbers differ from batch to batch, as the executor's do.
struct Sequence {
  int64_t next = 0;
  CollectiveArgs Number(CollectiveArgs args) {
    args.sequence = ++next;
    return args;
  }
};

}  // namespace coordd
