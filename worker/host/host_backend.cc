#include "worker/host/host_backend.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "worker/host/host_choice.h"
#include "worker/interfaces/collective_args.h"
#include "worker/interfaces/lanes.h"
#include "worker/interfaces/peer_status.h"

namespace coordd {
namespace {

// The tag of a message that no rank ever sends.
constexpr Tag kEndOfPeer{kEndOfPeerLane, (1 << 18) - 1, Tag::kParts - 1};

// Where ranks say what others must know before they choose an algorithm: a sum, to which a rank
// with flat ones adds the one number and a rank with hierarchical ones the other.
constexpr absl::string_view kAlgorithmKey = "host_algorithm";
constexpr int64_t kFlat = int64_t{1} << 32;
constexpr int64_t kHierarchical = 1;
// A round trip to coordd, unless that is in trouble.
constexpr absl::Duration kAlgorithmTimeout = absl::Seconds(10);

absl::Status TooManyLanes(LaneId id) {
  return absl::ResourceExhaustedError(absl::StrCat("lane ", ToInt(id), ": a rank has at most ",
                                                   NodeBoard::kEntries, " lanes at a time"));
}

}  // namespace

HostBackend::HostBackend(std::unique_ptr<Transport> transport, HostBackendOptions options,
                         std::unique_ptr<NodeArena> arena)
    : options_(std::move(options)), arena_(std::move(arena)), transport_(std::move(transport)) {}

HostBackend::~HostBackend() {
  // The transport lets go of the buffers first: it ends its operations, which the runs hear.
  transport_.reset();
  if (failure_.ok()) failure_ = CollectivesAborted();
  for (auto& [id, lane] : lanes_) {
    for (HostBatch& batch : lane.queue) std::move(batch.done)(failure_);
  }
}

bool HostBackend::Supports(MemoryKind memory, DataType, CollectiveKind) const {
  return memory == MemoryKind::kHost;
}

// Where private memory is shown in pieces, it does not matter in how many runs it lies. What is
// small is packed, into the post.
bool HostBackend::TakesParts(CollectiveKind kind, ProcessSetId group, int64_t size_bytes) const {
  const auto found = groups_.find(group);
  if (kind != CollectiveKind::kAllreduce || found == groups_.end()) return false;
  const HostGroup& members = found->second;
  return members.on_one_node() && !members.memories.empty() &&
         size_bytes > options_.node.inline_bytes_max;
}

absl::Status HostBackend::Connect(const GroupLayout& layout, Store& store, absl::Time deadline) {
  if (arena_ != nullptr) {
    COORDD_RETURN_IF_ERROR(arena_->Connect(layout, store, deadline));
    maps_ = !arena_->memories().empty();
  }
  // Before others find this rank's address, without which nobody is connected: who chooses an
  // algorithm has what all have said.
  store_ = &store;
  if (layout.num_nodes() > 1) COORDD_RETURN_IF_ERROR(SayAlgorithm(layout, deadline));
  COORDD_RETURN_IF_ERROR(transport_->Connect(layout, store, deadline));
  const HostGroup& all = groups_.emplace(ProcessSetId{0}, MakeGroup(layout, {})).first->second;
  if (options_.edges != nullptr && layout.ranks_on(layout.node_of(layout.self())) > 1)
    options_.edges->NoteNode(maps_ ? kOverMapped : kOverShm);
  if (maps_) WatchPeers(all.layout);
  one_node_ = layout.num_nodes() == 1;
  return absl::OkStatus();
}

// Nothing, as a rule.
absl::Status HostBackend::SayAlgorithm(const GroupLayout& layout, absl::Time deadline) {
  int64_t said = 0;
  // Each rank of a node without arenas, since whoever is in a group knows of its members only that
  // they are connected. One that is alone has nothing to map.
  const bool has_neighbours = layout.ranks_on(layout.node_of(layout.self())) > 1;
  if (options_.algorithm == HostAlgorithm::kFlat) said = kFlat;
  if (options_.algorithm == HostAlgorithm::kHierarchical) said = kHierarchical;
  if (!maps_ && has_neighbours) said = kFlat;
  return said == 0 ? absl::OkStatus() : store_->Add(kAlgorithmKey, said, deadline).status();
}

absl::StatusOr<HostAlgorithm> HostBackend::AgreedAlgorithm() {
  if (!agreed_.has_value()) {
    COORDD_ASSIGN_OR_RETURN(const int64_t said,
                            store_->Add(kAlgorithmKey, 0, Clock::Real().Now() + kAlgorithmTimeout));
    agreed_ = said >= kFlat ? HostAlgorithm::kFlat
              : said > 0    ? HostAlgorithm::kHierarchical
                            : HostAlgorithm::kAuto;
    const HostGroup& all = groups_.at(ProcessSetId{0});
    if (all.layout.self() == Rank{0} && all.has_labels && agreed_ != HostAlgorithm::kFlat) {
      COORDD_LOG(kInfo, "allreduces, allgathers and reducescatters between the ",
                 all.layout.num_nodes(), " nodes go by dimensions, ",
                 absl::StrJoin(all.grid.sizes, " x "),
                 ", the fastest network first, as COORDD_TOPOLOGY says");
    }
  }
  return *agreed_;
}

// A receive that nothing is ever sent to ends when its sender does.
void HostBackend::WatchPeers(const GroupLayout& layout) {
  const int32_t node = layout.node_of(layout.self());
  for (int32_t i = 0; i < layout.ranks_on(node); ++i) {
    const Rank rank{ToInt(layout.first_rank_of(node)) + i};
    if (rank == layout.self()) continue;
    transport_->Receive(rank, kEndOfPeer, absl::MakeSpan(&unsent_, 1),
                        [this, rank](absl::Status status) {
                          if (SuspectRank(status)) lost_.emplace(rank, std::move(status));
                        });
  }
}

HostGroup HostBackend::MakeGroup(GroupLayout layout, std::vector<Rank> members) const {
  const GroupLayout& all = groups_.empty() ? layout : groups_.at(ProcessSetId{0}).layout;
  const Rank first = all.first_rank_of(all.node_of(all.self()));
  return MakeHostGroup(
      std::move(layout), std::move(members), first,
      maps_ ? absl::MakeConstSpan(arena_->memories()) : absl::Span<const NodeMemory>());
}

absl::Status HostBackend::DefineGroup(ProcessSetId group, absl::Span<const Rank> ranks) {
  COORDD_CHECK(!groups_.empty());  // Connect comes first
  const GroupLayout& all = groups_.at(ProcessSetId{0}).layout;
  COORDD_RETURN_IF_ERROR(ValidateGroup(group, ranks, all.self(), all.size()));
  HostGroup made = MakeGroup(all.Subgroup(ranks), std::vector<Rank>(ranks.begin(), ranks.end()));
  if (groups_.emplace(group, std::move(made)).second) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("group ", ToInt(group), " is defined already, expected a new number"));
}

void HostBackend::EndGroup(ProcessSetId group) {
  COORDD_CHECK(ToInt(group) != 0);
  EndLane(LaneId{ToInt(group)});
  groups_.erase(group);
}

void HostBackend::EndLane(LaneId id) {
  const auto lane = lanes_.find(id);
  if (lane == lanes_.end()) return;
  COORDD_CHECK(lane->second.queue.empty());
  if (lane->second.node != nullptr) ended_.push_back(std::move(lane->second));
  lanes_.erase(lane);
  ReleaseEndedLanes();
}

absl::StatusOr<std::shared_ptr<MappedLane>> HostBackend::OpenMappedLane(
    LaneId id, absl::Span<const Rank> ranks) {
  COORDD_CHECK(!groups_.empty());  // Connect comes first
  const GroupLayout& all = groups_.at(ProcessSetId{0}).layout;
  const HostGroup group =
      MakeGroup(all.Subgroup(ranks), std::vector<Rank>(ranks.begin(), ranks.end()));
  if (group.memories.empty() || !group.on_one_node()) return nullptr;
  ReleaseEndedLanes();
  auto lane = std::make_shared<MappedLane>();
  lane->arena = arena_;
  lane->options = options_.node;
  lane->node =
      std::make_unique<NodeLane>(id, group.memories, ToInt(group.layout.self()), LaneBell::kOfLane);
  if (!lane->node->claimed()) return TooManyLanes(id);
  const absl::StatusOr<absl::Span<std::byte>> staging =
      arena_->AllocateStaging(NodeCollectiveRun::MaxStagingBytes(options_.node));
  if (!staging.ok()) {
    CloseMappedLane(std::move(lane));
    return staging.status();
  }
  lane->staging = *staging;
  return lane;
}

void HostBackend::CloseMappedLane(std::shared_ptr<MappedLane> closed) {
  HostLane& lane = ended_.emplace_back();
  lane.node = std::move(closed->node);
  lane.staging = closed->staging;
  ReleaseEndedLanes();
}

void HostBackend::ReleaseEndedLanes() {
  ended_.remove_if([this](HostLane& lane) {
    if (!lane.node->Release()) return false;
    if (!lane.staging.empty()) arena_->Free(lane.staging);
    return true;
  });
}

absl::Status HostBackend::Launch(CollectiveArgs args, Done done) {
  COORDD_CHECK(!groups_.empty());  // Connect comes first
  const auto group = groups_.find(args.group);
  if (group == groups_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(args.kind), ": group ", ToInt(args.group), " is not defined"));
  }
  const GroupLayout& layout = group->second.layout;
  COORDD_RETURN_IF_ERROR(ValidateArgs(args, layout.self(), layout.size()));
  HostLane& lane = lanes_[args.lane];
  if (lane.queue.size() >= kMaxQueuedBatches) {
    return absl::ResourceExhaustedError(
        absl::StrCat("lane ", ToInt(args.lane), " has ", lane.queue.size(), " batches waiting"));
  }
  lane.Put({std::move(args), &group->second, std::move(done)});
  return absl::OkStatus();
}

bool HostBackend::Progress() {
  bool moved = transport_->Progress();
  if (aborted_.load(std::memory_order_acquire)) FailAll(CollectivesAborted());
  Finished finished = std::exchange(finished_, {});
  for (auto& [id, lane] : lanes_) moved |= AdvanceLane(id, lane, finished);
  // Last, because a `done` may Launch.
  for (auto& [done, status] : finished) std::move(done)(std::move(status));
  finished.clear();
  finished_ = std::move(finished);
  return moved;
}

// Between nodes a transport without a descriptor has to be polled, also for what others still have
// from it.
BellUse HostBackend::Bell() {
  BellUse use;
  bool suffices = one_node_ && failure_.ok();
  for (const auto& [id, lane] : lanes_) {
    if (lane.run == nullptr) continue;
    const LaneRun::Rings rings = lane.run->rings();
    if (rings != LaneRun::Rings::kNobody) use.bell = &lane.node->bell();
    suffices = suffices && rings == LaneRun::Rings::kForAll;
  }
  use.suffices = suffices && use.bell != nullptr;
  if (!one_node_ && use.bell == nullptr && failure_.ok()) use.descriptor = transport_->Descriptor();
  if (use.suffices || use.descriptor >= 0) transport_->LookAtPeers();
  return use;
}

absl::StatusOr<absl::Span<std::byte>> HostBackend::AllocateFusionBuffer(int64_t size_bytes) {
  if (maps_) {
    absl::StatusOr<absl::Span<std::byte>> mapped = arena_->Allocate(size_bytes);
    if (mapped.ok()) return mapped;  // else it is staged as the program's own memory is
  }
  AlignedBuffer buffer(size_bytes);
  if (buffer.data() == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a fusion buffer of ", size_bytes, " bytes"));
  }
  fusion_buffers_.push_back(std::move(buffer));
  return fusion_buffers_.back().span();
}

void HostBackend::Abort() {
  aborted_.store(true, std::memory_order_release);
  transport_->Abort();
  if (arena_ != nullptr) arena_->Abort();
}

bool HostBackend::ClaimNodeLane(LaneId id, HostLane& lane) {
  if (lane.node != nullptr) return true;
  const HostGroup& group = *lane.queue.front().group;
  ReleaseEndedLanes();
  lane.node = std::make_unique<NodeLane>(id, group.memories, group.self_on_node);
  if (lane.node->claimed()) return true;
  lane.node.reset();
  FailAll(TooManyLanes(id));
  return false;
}

bool HostBackend::MakeStaging(HostLane& lane, int64_t staging_bytes) {
  // That of the batch before is nobody's any more: all members are through with it.
  if (staging_bytes <= static_cast<int64_t>(lane.staging.size())) return true;
  if (!lane.staging.empty()) arena_->Free(lane.staging);
  lane.staging = {};
  absl::StatusOr<absl::Span<std::byte>> staging = arena_->AllocateStaging(staging_bytes);
  if (!staging.ok()) {
    FailAll(staging.status());
    return false;
  }
  lane.staging = *staging;
  return true;
}

void HostBackend::StartNodeRun(LaneId id, HostLane& lane) {
  if (!ClaimNodeLane(id, lane)) return;
  const HostBatch& batch = lane.queue.front();
  const int32_t nodes = batch.group->layout.num_nodes();
  if (!MakeStaging(lane,
                   NodeCollectiveRun::StagingBytes(batch.args, *lane.node, options_.node, nodes)))
    return;
  if (nodes > 1) {
    const int64_t slice_bytes =
        NodeCollectiveRun::SliceBytesMax(batch.args, batch.group->carriers, nodes, options_.node);
    lane.exchange = MakeExchange(lane, slice_bytes);
    if (lane.exchange == nullptr) return;
  }
  lane.run = std::make_unique<NodeCollectiveRun>(batch.args, *lane.node, lane.staging,
                                                 options_.node, lane.exchange.get());
}

std::unique_ptr<SliceExchange> HostBackend::MakeExchange(HostLane& lane, int64_t slice_bytes) {
  const HostBatch& batch = lane.queue.front();
  auto exchange = std::make_unique<SliceExchange>(batch.args, AcrossOf(*batch.group, batch.args),
                                                  slice_bytes, options_.run, *transport_);
  const int64_t scratch_bytes = exchange->scratch_bytes();
  if (!MakeRoom(lane, scratch_bytes)) return nullptr;
  exchange->Use(lane.memory.span().first(static_cast<size_t>(scratch_bytes)));
  return exchange;
}

void HostBackend::StartSlices(HostLane& lane, int64_t slice_bytes) {
  auto exchange = MakeExchange(lane, slice_bytes);
  if (exchange == nullptr) return;
  exchange->BeginAll(slice_bytes);
  lane.run = std::move(exchange);
}

void HostBackend::StartLeaderRun(LaneId id, HostLane& lane) {
  const HostBatch& batch = lane.queue.front();
  if (!batch.group->memories.empty() && !ClaimNodeLane(id, lane)) return;
  auto run = std::make_unique<LeaderRun>(
      batch.args, lane.node.get(), LeadersOf(*batch.group, batch.args), options_.run, *transport_);
  const int64_t scratch_bytes = run->scratch_bytes();
  if (!MakeRoom(lane, scratch_bytes)) return;
  run->Begin(lane.memory.span().first(static_cast<size_t>(scratch_bytes)));
  lane.run = std::move(run);
}

void HostBackend::StartAlltoall(LaneId id, HostLane& lane) {
  const HostBatch& batch = lane.queue.front();
  const HostGroup& group = *batch.group;
  const bool alone = group.memories.empty();
  const NodeRanks node{ToInt(group.layout.self()) - group.self_on_node,
                       alone ? 1 : static_cast<int32_t>(group.memories.size())};
  if (!alone) {
    if (!ClaimNodeLane(id, lane)) return;
    const CollectiveArgs within = AlltoallRun::Within(batch.args, node);
    if (!MakeStaging(lane, NodeCollectiveRun::StagingBytes(within, *lane.node, options_.node)))
      return;
  }
  lane.run = std::make_unique<AlltoallRun>(batch.args, node, group.layout.self(), lane.node.get(),
                                           lane.staging, options_.node, options_.run, *transport_,
                                           group.members);
}

bool HostBackend::MakeRoom(HostLane& lane, int64_t scratch_bytes) {
  const absl::Status room = lane.MakeRoom(scratch_bytes);
  if (!room.ok()) FailAll(room);
  return room.ok();
}

absl::StatusOr<Algorithm> HostBackend::AlgorithmOf(const HostBatch& batch) {
  const CollectiveArgs& args = batch.args;
  const HostGroup& group = *batch.group;
  const bool alone = group.layout.size() == 1;
  if (!alone && args.kind == CollectiveKind::kAllreduce && options_.allreduce.has_value())
    return *options_.allreduce;
  if (alone || !HasOthers(args.kind, group)) return FlatAlgorithm(args, group);
  COORDD_ASSIGN_OR_RETURN(const HostAlgorithm agreed, AgreedAlgorithm());
  return AgreedChoice(args, group, agreed, options_.node.inline_bytes_max);
}

void HostBackend::Start(LaneId id, HostLane& lane) {
  const HostBatch& batch = lane.queue.front();
  const HostGroup& group = *batch.group;
  // Inside a node there is one way.
  if (!group.memories.empty() && group.on_one_node()) return StartNodeRun(id, lane);
  const absl::StatusOr<Algorithm> algorithm = AlgorithmOf(batch);
  if (!algorithm.ok()) return FailAll(algorithm.status());
  if (batch.args.algorithm != nullptr)
    *batch.args.algorithm = NameOf(*algorithm, batch.args.kind, group);
  switch (*algorithm) {
    case Algorithm::kHierarchical:
      if (batch.args.kind == CollectiveKind::kAlltoall) return StartAlltoall(id, lane);
      if (!group.memories.empty()) return StartNodeRun(id, lane);
      // Alone on its node: the same pieces as on the others are its only slices.
      return StartSlices(
          lane, ExchangedPieceBytes(SizeOf(NodeInputOf(batch.args)), options_.node.staging));
    case Algorithm::kLeaders:
      return StartLeaderRun(id, lane);
    case Algorithm::kSlices:
      return StartSlices(lane, SliceExchange::SliceBytesFor(batch.args));
    default:
      return StartSchedule(lane, *algorithm);
  }
}

void HostBackend::StartSchedule(HostLane& lane, Algorithm algorithm) {
  const HostBatch& batch = lane.queue.front();
  RunOptions options = options_.run;
  if (batch.args.kind == CollectiveKind::kBroadcast)
    options.moved_segment_bytes = options_.broadcast_segment_bytes;
  lane.StartSchedule(batch.args, *batch.group, algorithm, options, *transport_);
}

bool HostBackend::AdvanceLane(LaneId id, HostLane& lane, Finished& finished) {
  bool moved = false;
  while (!lane.queue.empty()) {
    if (FailureOf(lane).ok() && lane.run == nullptr) Start(id, lane);
    bool succeeded = false;
    if (lane.run != nullptr) {
      moved |= AdvanceRun(lane, *lane.queue.front().group);
      if (!lane.run->finished()) break;
      succeeded = lane.run->status().ok();
    }
    finished.emplace_back(std::move(lane.queue.front().done),
                          succeeded ? absl::OkStatus() : FailureOf(lane));
    lane.EndRun();
    lane.RemoveFront();
    moved = true;
  }
  return moved;
}

bool HostBackend::AdvanceRun(HostLane& lane, const HostGroup& group) {
  bool moved = lane.run->Advance();
  moved |= FailForLostNeighbours(lane, group);
  if (!lane.run->status().ok()) Fail(lane, group, lane.run->status());
  return moved;
}

std::optional<absl::Status> HostBackend::RunAgain(const CollectiveArgs& args,
                                                  absl::FunctionRef<bool(bool moved)> goes_on,
                                                  absl::FunctionRef<Done()> launched) {
  const auto found = lanes_.find(args.lane);
  const auto group = groups_.find(args.group);
  if (found == lanes_.end() || group == groups_.end()) return std::nullopt;
  HostLane& lane = found->second;
  if (!lane.queue.empty() || !FailureOf(lane).ok() || !lane.kept.Does(args)) return std::nullopt;
  lane.run = lane.kept.Begin(args, group->second.members);
  for (bool moved = true;; moved = Progress()) {
    moved |= AdvanceRun(lane, group->second);
    if (lane.run->finished()) break;
    if (!goes_on(moved)) {
      lane.Put({args, &group->second, launched()});
      return std::nullopt;
    }
  }
  absl::Status status = lane.run->status().ok() ? absl::OkStatus() : FailureOf(lane);
  lane.EndRun();
  return status;
}

// What a rank has said before it ended counts: who was heard to be lost is looked at after that.
bool HostBackend::FailForLostNeighbours(HostLane& lane, const HostGroup& group) {
  if (lost_.empty() || lane.run->finished() || !lane.run->status().ok()) return false;
  const std::vector<Rank>& neighbours = group.neighbours;
  for (size_t member = 0; member < neighbours.size(); ++member) {
    const auto lost = lost_.find(neighbours[member]);
    if (lost == lost_.end() || !lane.run->WaitsFor(static_cast<int32_t>(member))) continue;
    lane.run->Fail(lost->second);
    return true;
  }
  return false;
}

void HostBackend::Fail(HostLane& lane, const HostGroup& group, const absl::Status& status) {
  if (group.layout.size() != 2 || !SuspectRank(status)) return FailAll(status);
  lane.failure = status;
}

void HostBackend::FailAll(absl::Status status) {
  if (!failure_.ok()) return;
  failure_ = std::move(status);
  transport_->Abort();
  for (auto& [id, lane] : lanes_) {
    if (lane.run != nullptr) lane.run->Fail(failure_);
  }
}

}  // namespace coordd
