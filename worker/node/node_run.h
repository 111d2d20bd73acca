// Executes one collective among ranks of a node that have each other's memory mapped, a piece of
// work at a time: what CollectiveRun is over a Transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/algorithms/slice_exchange.h"
#include "worker/base/copy_bytes.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/interfaces/lane_run.h"
#include "worker/node/awaited_step.h"
#include "worker/node/node_inline.h"
#include "worker/node/node_lane.h"
#include "worker/node/node_mover.h"
#include "worker/node/node_plan.h"
#include "worker/node/operation_cursor.h"

namespace coordd {

// Equal on all members.
struct NodeRunOptions {
  // Inputs up to here travel in the post: no second step, in which the others' memory is let go.
  // What every member reads of all others, an allreduce's, all of them together: that is twice as
  // much as by parts for two members, and the more the more they are, so that from eight on a step
  // is worth it beyond an eighth.
  int64_t inline_bytes_max = 4096;
  // In which private memory is shown to the others: buffers small enough that what one core has
  // written is still in its second-level cache when the other one reads it.
  // Of what is exchanged pieces are larger, so that a slice of one is a message or two.
  NodeStaging staging = {.buffer_bytes = int64_t{256} << 10,
                         .broadcast_bytes = int64_t{16} << 10,
                         .exchange_bytes = int64_t{1} << 20};
  // A broadcast of up to here among three or more, each of which fetches all of it from the root:
  // nobody but the root waits for anybody but the root. Beyond, all copy a part to all, which takes
  // each of p members (p - 1) / p of the time, and a step in which all wait for all.
  int64_t pull_bytes_max = int64_t{256} << 10;
  // From so many bytes on the results of two members pass by the caches, unless they take the place
  // of an operand, whose lines are there.
  int64_t stream_bytes_min = StreamBytesMin();
  // How much an Advance moves at most: some 100 us, after which an Abort is heard.
  int64_t work_bytes_max = int64_t{1} << 20;
};

// With an exchange it goes on to other nodes, slice by slice. Peers read the input and write the
// output while it runs, also after this side has given up: a failed collective's buffers that are
// mapped belong to the members until all of them have given up too.
class NodeCollectiveRun final : public LaneRun {
 public:
  // How much `staging` a member needs; 0 where all that others have to reach is mapped.
  static int64_t StagingBytes(const CollectiveArgs& args, const NodeLane& lane,
                              const NodeRunOptions& options, int32_t nodes = 1);
  // The most that it needs for any that is not exchanged.
  static int64_t MaxStagingBytes(const NodeRunOptions& options);

  // Slices, or parts of blocks, of a collective that so many members of each node exchange.
  static int64_t SliceBytesMax(const CollectiveArgs& args, int32_t carriers, int32_t nodes,
                               const NodeRunOptions& options);

  // `args` are valid; args.root counts the members, of all nodes. They, the lane and `staging`,
  // which lies in this rank's NodeMemory, 64-byte aligned, outlive the run; so does `exchange`, if
  // there is one: for an allreduce, broadcast or reduce, and for an allgather or reducescatter with
  // as many members on each of its nodes.
  NodeCollectiveRun(const CollectiveArgs& args, NodeLane& lane, absl::Span<std::byte> staging,
                    const NodeRunOptions& options, SliceExchange* exchange = nullptr);
  NodeCollectiveRun(const NodeCollectiveRun&) = delete;
  NodeCollectiveRun& operator=(const NodeCollectiveRun&) = delete;

  bool Advance() override;
  void Fail(absl::Status status) override;
  bool finished() const override {
    if (inline_.has_value()) return !status_.ok() || inline_->finished();
    if (phase_ == Phase::kFinished) return true;
    return !status_.ok() && (exchange_ == nullptr || exchange_->idle());
  }
  const absl::Status& status() const override { return status_; }
  bool WaitsFor(int32_t member) const override;  // as the last Advance found
  Rings rings() const override { return exchange_ == nullptr ? Rings::kForAll : Rings::kMembers; }

 private:
  enum class Phase : uint8_t { kPosting, kGathering, kWorking, kWaiting, kFinished };
  enum class Progress : uint8_t { kDone, kMore, kBlocked };  // of a step's operations

  // Of an alltoall.
  struct Splits {
    absl::InlinedVector<int64_t, 8> offsets;  // where this one's block begins in each input
    std::vector<int64_t> taken;               // bytes of each block; empty: as args_ has them
    absl::Status disagreement;                // the status at the end: something else has come
  };

  static bool IsShareable(const CollectiveArgs& args, const NodeLane& lane, bool exchanged);

  bool Pulls() const {
    return args_.kind == CollectiveKind::kBroadcast && exchange_ == nullptr && lane_.size() > 2 &&
           static_cast<int64_t>(input_.size()) <= options_.pull_bytes_max;
  }
  absl::Status ReadPost(int32_t member);
  void ReadSplits(int32_t member);
  bool AllHaveReached(int64_t step) { return awaited_.AllHaveReached(lane_, step); }
  bool RootHasReached(int64_t step) { return awaited_.HasReached(lane_, collective_.root, step); }
  bool MayGoOn();
  void BeginExchange(const NodeOperation& operation);
  void PostPlace();
  absl::Status ReadPosts();
  int64_t StreamBytesFrom() const;
  void CopyCarried();
  void Stage(int64_t piece);
  void NextStep();
  Progress Work();

  // Constant after construction.
  const CollectiveArgs& args_;
  NodeLane& lane_;
  const absl::Span<std::byte> staging_;
  const NodeRunOptions options_;
  const int64_t first_step_;
  const absl::Span<const std::byte> input_;
  SliceExchange* const exchange_;

  // Touched by the owner's thread.
  NodeMover mover_;
  std::optional<NodeInlineRun> inline_;  // all that there is to it, if it is small
  NodeCollective collective_;
  NodeMode mode_;
  Splits splits_;
  absl::InlinedVector<NodePost, 4> posts_;
  Phase phase_ = Phase::kPosting;
  int64_t step_ = 0;            // of the plan
  OperationCursor operations_;  // of the step
  int64_t left_bytes_ = 0;      // that this Advance may still move
  AwaitedStep<> awaited_;
  absl::Status status_;
};

}  // namespace coordd
