// Collectives on host memory: over any Transport, and inside a node on mapped memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "worker/algorithms/algorithm_table.h"
#include "worker/algorithms/collective_run.h"
#include "worker/algorithms/slice_exchange.h"
#include "worker/base/aligned_buffer.h"
#include "worker/host/alltoall_run.h"
#include "worker/host/host_group.h"
#include "worker/host/host_lane.h"
#include "worker/host/leader_run.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/interfaces/edge_report.h"
#include "worker/interfaces/transport.h"
#include "worker/node/mapped_lane.h"
#include "worker/node/node_arena.h"
#include "worker/node/node_run.h"

namespace coordd {

struct HostBackendOptions {
  // For tests and measurements: the algorithm instead of the table's choice, on all ranks alike.
  std::optional<Algorithm> allreduce = {};
  // The algorithm that this rank wants. Where one rank wants flat ones, all of the job have them;
  // else where one wants hierarchical ones.
  HostAlgorithm algorithm = HostAlgorithm::kAuto;
  RunOptions run = {};
  // Of the messages of broadcasts that are larger: over TCP 4 MiB go in four fifths of the time
  // that sixteen segments take.
  int64_t broadcast_segment_bytes = int64_t{4} << 20;
  NodeRunOptions node = {};
  // Whom it tells over what the ranks of the node are reached, as the transport does of other
  // nodes. nullptr: nobody.
  std::shared_ptr<EdgeReport> edges = nullptr;
};

// With an arena, groups whose ranks all share this rank's node run on mapped memory
// (node_run.h): messages then tell only who has gone. Groups on several nodes, on one of them more
// than one rank, do so inside the nodes: between them small ones are talked about by one rank of
// each (leader_run.h), and allreduces, broadcasts, reduces, and on nodes with as many ranks each
// allgathers and reducescatters, send slices (slice_exchange.h); an alltoall's blocks go straight
// to where they belong (alltoall_run.h). Which one it is: host_choice.h. What else there is, groups
// of more than NodeLane::kMaxMembers on a node, and everything without an arena, go through the
// transport. All ranks of a node are given an arena or none is; whether they can have it they find
// out in Connect, together. That another node has none it says in the store, where others look
// before their first collective that would need it: a rank is connected before any other one
// launches what it takes part in.
//
// Each lane runs its batches one after the other; lanes do not wait for each other. Once anything
// has failed, the generation's data plane is over: what is running and all that is launched later
// ends with that first error (PeerLost, if a peer is to blame), after the transport has let go of
// the buffers. The loss of the other one of two ends their lane alone: it may have left, behind
// which those who are left finish what they do without it.
class HostBackend final : public CollectiveBackend {
 public:
  // Batches that wait on one lane: far above what the executor has in flight. Beyond it Launch
  // returns RESOURCE_EXHAUSTED.
  static constexpr size_t kMaxQueuedBatches = 4096;

  explicit HostBackend(std::unique_ptr<Transport> transport, HostBackendOptions options = {},
                       std::unique_ptr<NodeArena> arena = nullptr);
  ~HostBackend() override;

  absl::string_view name() const override { return "host"; }
  bool Supports(MemoryKind memory, DataType dtype, CollectiveKind kind) const override;
  bool TakesParts(CollectiveKind kind, ProcessSetId group, int64_t size_bytes) const override;
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) override;
  absl::Status DefineGroup(ProcessSetId group, absl::Span<const Rank> ranks) override;
  void EndGroup(ProcessSetId group) override;
  void EndLane(LaneId lane) override;
  absl::StatusOr<std::shared_ptr<MappedLane>> OpenMappedLane(LaneId id,
                                                             absl::Span<const Rank> ranks) override;
  void CloseMappedLane(std::shared_ptr<MappedLane> closed) override;
  std::shared_ptr<NodeArena> arena() const override { return arena_; }
  std::shared_ptr<EdgeReport> edges() const override { return options_.edges; }
  absl::Status Launch(CollectiveArgs args, Done done) override;
  std::optional<absl::Status> RunAgain(const CollectiveArgs& args,
                                       absl::FunctionRef<bool(bool moved)> goes_on,
                                       absl::FunctionRef<Done()> launched) override;
  bool Progress() override;
  BellUse Bell() override;
  absl::StatusOr<absl::Span<std::byte>> AllocateFusionBuffer(int64_t size_bytes) override;
  void Abort() override;

 private:
  using Finished = std::vector<std::pair<Done, absl::Status>>;

  HostGroup MakeGroup(GroupLayout layout, std::vector<Rank> members) const;
  absl::Status SayAlgorithm(const GroupLayout& layout, absl::Time deadline);
  absl::StatusOr<HostAlgorithm> AgreedAlgorithm();
  absl::StatusOr<Algorithm> AlgorithmOf(const HostBatch& batch);
  void WatchPeers(const GroupLayout& layout);
  void Start(LaneId id, HostLane& lane);
  bool ClaimNodeLane(LaneId id, HostLane& lane);
  bool MakeStaging(HostLane& lane, int64_t staging_bytes);
  void StartNodeRun(LaneId id, HostLane& lane);
  void StartLeaderRun(LaneId id, HostLane& lane);
  void StartAlltoall(LaneId id, HostLane& lane);
  void StartSchedule(HostLane& lane, Algorithm algorithm);
  bool AdvanceLane(LaneId id, HostLane& lane, Finished& finished);
  bool AdvanceRun(HostLane& lane, const HostGroup& group);
  // nullptr: there is no memory for it, and all has failed.
  std::unique_ptr<SliceExchange> MakeExchange(HostLane& lane, int64_t slice_bytes);
  void StartSlices(HostLane& lane, int64_t slice_bytes);
  bool MakeRoom(HostLane& lane, int64_t scratch_bytes);
  bool FailForLostNeighbours(HostLane& lane, const HostGroup& group);
  void ReleaseEndedLanes();
  void Fail(HostLane& lane, const HostGroup& group, const absl::Status& status);
  void FailAll(absl::Status status);
  const absl::Status& FailureOf(const HostLane& lane) const {
    return failure_.ok() ? lane.failure : failure_;
  }

  // Constant after construction.
  const HostBackendOptions options_;
  const std::shared_ptr<NodeArena> arena_;  // nullptr: none is tried

  // Thread-safe by itself.
  std::atomic<bool> aborted_ = false;

  // Touched by the owner's thread (transport_->Abort by any).
  std::unique_ptr<Transport> transport_;
  bool maps_ = false;  // the node's ranks have arenas: known by Connect
  bool one_node_ = false;
  Store* store_ = nullptr;
  std::optional<HostAlgorithm> agreed_;       // absent: nobody has looked yet
  std::map<Rank, absl::Status> lost_;         // of the node, with arenas
  std::byte unsent_{};                        // what they would say if they ever said anything
  std::map<ProcessSetId, HostGroup> groups_;  // empty: not connected
  absl::Status failure_;
  std::vector<AlignedBuffer> fusion_buffers_;
  Finished finished_;  // for its memory
  std::map<LaneId, HostLane> lanes_;
  std::list<HostLane> ended_;  // on mapped memory, until all members are through with them
};

}  // namespace coordd
