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
#include "worker/interfaces/lane_run.h"
#include "worker/interfaces/transport.h"
#include "worker/node/node_lane.h"
#include "worker/node/node_run.h"

namespace coordd {

// The ranks of a group that are on this one's node. They follow each other.
struct NodeRanks {
  int32_t first = 0;
  int32_t count = 1;
};

// Nodes may have different numbers of ranks. Other members read the input as of a
// NodeCollectiveRun.
class AlltoallRun final : public LaneRun {
 public:
  // The arguments of its node's part of the collective.
  static CollectiveArgs Within(const CollectiveArgs& args, NodeRanks node);

  // `args` are valid; they, `lane`, `transport` and what `members` points to outlive the run.
  // `lane` and `staging`, NodeCollectiveRun::StagingBytes of Within, are the node's; nullptr: this
  // rank is alone there.
  AlltoallRun(const CollectiveArgs& args, NodeRanks node, Rank self, NodeLane* lane,
              absl::Span<std::byte> staging, const NodeRunOptions& node_options, RunOptions options,
              Transport& transport, RunMembers members);
  AlltoallRun(const AlltoallRun&) = delete;
  AlltoallRun& operator=(const AlltoallRun&) = delete;

  bool Advance() override;
  void Fail(absl::Status status) override;
  bool finished() const override {
    return across_.finished() && (!status_.ok() || !within_.has_value() || within_->finished());
  }
  const absl::Status& status() const override { return status_; }
  bool WaitsFor(int32_t member) const override {
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
