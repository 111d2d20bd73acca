// Executes an alltoall among several nodes: blocks for ranks of the own node on mapped memory
// (node_run.h), all others straight between the buffers over a transport, both at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/algorithms/collective_run.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/interfaces/transport.h"
#include "worker/node/node_lane.h"
#include "worker/node/node_run.h"

namespace coordd {

// Of a group, which of its ranks are on this one's node. They follow each other.
struct NodeRanks {
  int32_t first = 0;
  int32_t count = 1;
};

// Nodes may have different numbers of ranks. One thread, that of the transport's owner. Resumable;
// as CollectiveRun not to be destroyed before finished(), unless the transport has dropped its
// operations; and other members read the input as of a NodeCollectiveRun.
class AlltoallRun {
 public:
  // What its node's part of the collective is.
  static CollectiveArgs Within(const CollectiveArgs& args, NodeRanks node);

  // `args` are valid; they, `lane`, `transport` and what `members` points to outlive the run.
  // `lane` and `staging`, NodeCollectiveRun::StagingBytes of Within, are the node's; nullptr: this
  // rank is alone there.
  AlltoallRun(const CollectiveArgs& args, NodeRanks node, Rank self, NodeLane* lane,
              absl::Span<std::byte> staging, const NodeRunOptions& node_options, RunOptions options,
              Transport& transport, RunMembers members);
  AlltoallRun(const AlltoallRun&) = delete;
  AlltoallRun& operator=(const AlltoallRun&) = delete;

  // Does what can be done without waiting; returns whether anything was done.
  bool Advance();
  // Nothing further is sent. The first error counts.
  void Fail(absl::Status status);
  // With an error: nothing of it is under way any more.
  bool finished() const {
    return across_.finished() && (!status_.ok() || !within_.has_value() || within_->finished());
  }
  const absl::Status& status() const { return status_; }
  // Whether its node's part does not go on before the next step of this member.
  bool WaitsFor(int32_t member) const {
    return status_.ok() && within_.has_value() && within_->WaitsFor(member);
  }

 private:
  // Constant after construction.
  const CollectiveArgs within_args_;

  // Touched by the owner's thread.
  std::optional<NodeCollectiveRun> within_;
  CollectiveRun across_;
  absl::Status status_;
};

}  // namespace coordd
