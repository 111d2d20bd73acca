// What simulated workers say.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "common/types.h"
#include "coordd/v1/session.pb.h"

namespace coordd::bench {

// A job that is not there: `nodes` times `ranks_per_node` workers.
struct JobShape {
  int32_t nodes = 1;
  int32_t ranks_per_node = 1;
  int32_t ranks() const { return nodes * ranks_per_node; }
};

// The Join of the worker that is to become `rank`. It executes no schedules: what repeats is
// negotiated, or cached, each time.
v1::WorkerMessage JoinMessage(const std::string& job, const JobShape& shape, int32_t rank);

// Reports of `tensors` gradients, the same on all ranks. Other names for another `series`.
v1::WorkerMessage ReadyMessage(Epoch epoch, Generation generation, int64_t series, int32_t tensors);

// The same by slots of set 0; `known`: the newest of it.
v1::WorkerMessage CachedMessage(Epoch epoch, Generation generation, absl::Span<const int64_t> slots,
                                int64_t known);

v1::WorkerMessage HeartbeatMessage(Epoch epoch, Generation generation, int64_t sent_ns);

}  // namespace coordd::bench
