// Executes a small collective among several nodes by one rank of each: inside a node the inputs
// travel in posts (node_inline.h), between nodes only leaders talk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/algorithms/collective_run.h"
#include "worker/algorithms/collective_schedule.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/interfaces/lane_run.h"
#include "worker/interfaces/transport.h"
#include "worker/node/node_inline.h"
#include "worker/node/node_lane.h"

namespace coordd {

// The ranks that talk between the nodes.
struct NodeLeaders {
  // The leader of each node, as a rank of the transport. Where a collective has a root, it is the
  // leader of its node.
  std::vector<Rank> ranks;
  std::vector<int64_t> members;  // by node: how many ranks it has
  int32_t node = 0;              // the own one
  int32_t root_node = 0;
  int32_t leader = 0;  // which member of the own node
};

// An allreduce, reduce, broadcast, allgather or barrier. Of what is reduced a node's leader
// combines its members' inputs in their order, a schedule combines the nodes', and the leader's
// result, scaled there, is everybody's: all have the same bits. Nodes may have different numbers of
// ranks. Cost: ceil(log2 k) steps between k nodes (an allgather k - 1), and two inside, where a
// flat schedule has as many steps and messages as there are ranks.
//
// Other members read and write nothing but posts.
class LeaderRun final : public LaneRun {
 public:
  // Whether it can: known to all ranks alike. `inline_bytes_max`: NodeRunOptions.
  static bool Fits(const CollectiveArgs& args, int64_t inline_bytes_max);

  // `args` are valid; they, `lane` and `transport` outlive the run. `lane`: of this rank's node;
  // nullptr: it is alone there. REQUIRES: Fits; more than one node.
  LeaderRun(const CollectiveArgs& args, NodeLane* lane, NodeLeaders leaders, RunOptions options,
            Transport& transport);
  LeaderRun(const LeaderRun&) = delete;
  LeaderRun& operator=(const LeaderRun&) = delete;

  // The size of `scratch` that the run needs.
  int64_t scratch_bytes() const { return partial_bytes_ + schedule_bytes_ + segment_bytes_; }
  // Gives the run its scratch: 64-byte aligned, valid until the run is destroyed. To be called
  // once, before Advance.
  void Begin(absl::Span<std::byte> scratch);

  bool Advance() override;
  void Fail(absl::Status status) override;
  bool finished() const override {
    if (!status_.ok()) return !across_.has_value() || across_->finished();
    return !across_.has_value() && !inside_.has_value();
  }
  const absl::Status& status() const override { return status_; }
  bool WaitsFor(int32_t member) const override {
    return status_.ok() && inside_.has_value() && inside_->WaitsFor(member);
  }

 private:
  bool is_leader() const { return lane_ == nullptr || lane_->self() == leaders_.leader; }
  ByteRange PartOf(int32_t node) const;
  TransferSchedule MakeSchedule() const;
  void BeginGathering();
  void BeginAcross();
  void BeginGiving();
  bool AdvanceInside();
  bool AdvanceAcross();

  // Constant after construction.
  const CollectiveArgs& args_;
  NodeLane* const lane_;
  const NodeLeaders leaders_;
  const RunOptions options_;
  Transport& transport_;
  const double scale_;
  int64_t partial_bytes_ = 0, schedule_bytes_ = 0, segment_bytes_ = 0;

  // Touched by the owner's thread.
  absl::Span<std::byte> scratch_;
  CollectiveArgs inside_args_;  // of what the node does
  bool gathers_ = false;        // else what it does is to give the result to its members
  std::optional<NodeInlineRun> inside_;
  TransferSchedule schedule_;  // until it begins; of a leader
  std::optional<CollectiveRun> across_;
  absl::Status status_;
};

}  // namespace coordd
