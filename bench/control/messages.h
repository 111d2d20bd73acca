// What simulated workers say.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "coordd/v1/node.pb.h"
#include "coordd/v1/session.pb.h"

namespace coordd::bench {

// A job that is not there: `nodes` times `ranks_per_node` workers.
struct JobShape {
  int32_t nodes = 1;
  int32_t ranks_per_node = 1;
  bool node_sessions = false;  // one for each node, instead of one for each rank
  int32_t ranks() const { return nodes * ranks_per_node; }
  int32_t sessions() const { return node_sessions ? nodes : ranks(); }  // streams to coordd
};

// The Join of the worker that is to become `rank`. It executes no schedules: what repeats is
// negotiated, or cached, each time.
v1::WorkerMessage JoinMessage(const std::string& job, const JobShape& shape, int32_t rank);

// Reports of `tensors` gradients, the same on all ranks. Other names for another `series`.
v1::WorkerMessage ReadyMessage(Epoch epoch, Generation generation, int64_t series, int32_t tensors);

// The same by slots of set 0; `known`: the newest of it.
v1::WorkerMessage CachedMessage(Epoch epoch, Generation generation, absl::Span<const int64_t> slots,
                                int64_t known);

// A request for a process set of these ranks, by one of them.
v1::WorkerMessage GroupMessage(Epoch epoch, Generation generation, const std::string& name,
                               absl::Span<const int32_t> ranks);

v1::NodeHello HelloMessage(const std::string& job, int32_t node);

v1::WorkerMessage HeartbeatMessage(Epoch epoch, Generation generation, int64_t sent_ns);

}  // namespace coordd::bench
