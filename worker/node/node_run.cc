#include "worker/node/node_run.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/protocol/tensor_spec.h"
#include "worker/base/copy_bytes.h"
#include "worker/node/node_call.h"

namespace coordd {
namespace {

static_assert(kExchangeAhead <= SliceExchange::kInFlight);

// Results below never pass by the caches.
constexpr int64_t kStreamBytesLeast = int64_t{8} << 20;

int64_t OffsetIn(NodeMemory memory, const std::byte* address) { return address - memory.data(); }

// What the plan has to know of a collective, but for who of the members this is.
NodeCollective Described(const CollectiveArgs& args, int32_t members, int32_t nodes) {
  NodeCollective collective;
  collective.kind = args.kind;
  collective.members = members;
  collective.nodes = nodes;
  collective.size_bytes = SizeOf(NodeInputOf(args));
  collective.input_blocks = args.input_block_bytes;
  collective.output_blocks = args.output_block_bytes;
  return collective;
}

}  // namespace

bool NodeCollectiveRun::IsShareable(const CollectiveArgs& args, const NodeLane& lane,
                                    bool exchanged) {
  switch (args.kind) {
    case CollectiveKind::kAllgather:
      // What is exchanged is given by whom it has come to.
      return exchanged ? IsOutputMapped(args, lane) : IsInputMapped(args, lane);
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kBroadcast:
      return IsInputMapped(args, lane) && IsOutputMapped(args, lane);
    default:
      return IsInputMapped(args, lane);
  }
}

int64_t NodeCollectiveRun::StagingBytes(const CollectiveArgs& args, const NodeLane& lane,
                                        const NodeRunOptions& options, int32_t nodes) {
  if (nodes > 1) {
    // What is reduced for a root that is not mapped lies in staging, too.
    const bool gives = args.kind != CollectiveKind::kReduce || !args.output.empty();
    if (gives && IsShareable(args, lane, /*exchanged=*/true)) return 0;
    const NodeMode mode = ExchangedMode(Described(args, lane.size(), nodes), options.staging);
    return kStagingBuffers * mode.buffer_bytes;
  }
  if (NodeInlineRun::Fits(args, lane.size(), options.inline_bytes_max)) return 0;
  const bool shows = IsInputMapped(args, lane);
  const bool gives =
      !HasNodeResults(args.kind) || (IsOutputMapped(args, lane) && !args.output.empty());
  return shows && gives ? 0 : MaxStagingBytes(options);
}

int64_t NodeCollectiveRun::MaxStagingBytes(const NodeRunOptions& options) {
  return kStagingBuffers * options.staging.buffer_bytes;
}

int64_t NodeCollectiveRun::SliceBytesMax(const CollectiveArgs& args, int32_t carriers,
                                         int32_t nodes, const NodeRunOptions& options) {
  const NodeCollective collective = Described(args, carriers, nodes);
  return LargestSliceBytes(collective, ExchangedMode(collective, options.staging));
}

NodeCollectiveRun::NodeCollectiveRun(const CollectiveArgs& args, NodeLane& lane,
                                     absl::Span<std::byte> staging, const NodeRunOptions& options,
                                     SliceExchange* exchange)
    : args_(args),
      lane_(lane),
      staging_(staging),
      options_(options),
      first_step_(lane.step() + 1),
      input_(NodeInputOf(args)),
      exchange_(exchange),
      mover_(args, lane, staging, exchange, NodeScaleOf(args)) {
  if (exchange == nullptr && NodeInlineRun::Fits(args, lane.size(), options.inline_bytes_max)) {
    inline_.emplace(args, lane);
    return;
  }
  collective_ = Described(args, lane.size(), exchange == nullptr ? 1 : exchange->nodes());
  collective_.self = lane.self();
  collective_.root = ToInt(args.root);
  if (exchange != nullptr) {
    collective_.node = exchange->node();
    collective_.carriers = exchange->carriers();
    collective_.root = exchange->has_root() ? exchange->root_member() : NodeCollective::kElsewhere;
  }
}

void NodeCollectiveRun::Fail(absl::Status status) {
  if (!status_.ok()) return;
  status_ = std::move(status);
  if (exchange_ != nullptr && !status_.ok()) exchange_->Fail(status_);
}

bool NodeCollectiveRun::Advance() {
  if (inline_.has_value()) {
    if (!status_.ok()) return false;
    const bool went_on = inline_->Advance();
    if (inline_->finished()) Fail(inline_->status());
    return went_on;
  }
  bool moved = false;
  left_bytes_ = options_.work_bytes_max;
  if (exchange_ != nullptr) {
    moved = exchange_->Advance();
    if (!exchange_->status().ok()) Fail(exchange_->status());
    if (!status_.ok()) return moved;
  }
  while (!finished()) {
    switch (phase_) {
      case Phase::kPosting:
        if (!AllHaveReached(first_step_ - 1)) return moved;
        PostPlace();
        phase_ = Phase::kGathering;
        lane_.Reach(first_step_);
        break;
      case Phase::kGathering:
        if (Pulls() ? !RootHasReached(first_step_) : !AllHaveReached(first_step_)) return moved;
        Fail(ReadPosts());
        break;
      case Phase::kWorking:
        // A portion at a time: the caller looks around in between.
        if (const Progress progress = Work(); progress != Progress::kDone)
          return moved || progress == Progress::kMore;
        NextStep();
        if (left_bytes_ <= 0) return true;
        break;
      case Phase::kWaiting:
        if (!MayGoOn()) return moved;
        if (step_ == NodeSteps(collective_, mode_)) {
          lane_.Finish(first_step_ + step_);
          phase_ = Phase::kFinished;
          Fail(splits_.disagreement);
        } else {
          operations_.Begin(OperationsOf(collective_, mode_, step_));
          phase_ = Phase::kWorking;
        }
        break;
      case Phase::kFinished:
        break;
    }
    moved = true;
  }
  return moved;
}

bool NodeCollectiveRun::MayGoOn() {
  const NodeWait wait = WaitBefore(collective_, mode_, step_);
  // Where the input itself is shown, nothing takes its place.
  const bool shows_itself = posts_[static_cast<size_t>(lane_.self())].Has(NodePost::kInputMapped);
  if (shows_itself && wait.reached < step_) return true;
  const int64_t step = first_step_ + wait.reached;
  return wait.member == NodeWait::kAll ? AllHaveReached(step) : RootHasReached(step);
}

bool NodeCollectiveRun::WaitsFor(int32_t member) const {
  if (inline_.has_value()) return status_.ok() && inline_->WaitsFor(member);
  return !finished() && awaited_.WaitsFor(lane_, member);
}

void NodeCollectiveRun::PostPlace() {
  const NodeMemory own = lane_.memory(lane_.self());
  mode_ = exchange_ == nullptr ? StagedMode(collective_, options_.staging)
                               : ExchangedMode(collective_, options_.staging);
  NodePost post;
  post.sequence = args_.sequence;
  post.largest_block_bytes = LargestBlockBytes(collective_);
  if (IsShareable(args_, lane_, exchange_ != nullptr)) post.flags |= NodePost::kShareable;
  if (IsInputMapped(args_, lane_)) {
    post.flags |= NodePost::kInputMapped;
    if (!input_.empty()) post.input = OffsetIn(own, input_.data());
  }
  if (IsOutputMapped(args_, lane_) && !args_.output.empty()) {
    post.flags |= NodePost::kOutputMapped;
    post.output = OffsetIn(own, args_.output.data());
  }
  if (!staging_.empty()) post.staging = OffsetIn(own, staging_.data());
  // How large the block of each member is, and the blocks themselves if they are small.
  int64_t end = sizeof(NodePost);
  std::byte* const payload = lane_.Payload(first_step_);
  if (HasSplits(args_.kind)) {
    const std::vector<int64_t>& blocks = args_.input_block_bytes;
    std::memcpy(payload + end, blocks.data(), blocks.size() * sizeof(int64_t));
    end += static_cast<int64_t>(blocks.size() * sizeof(int64_t));
  }
  // Of a gather and an alltoall; nobody but the receiver of a block reads it.
  const bool blocks_by_sender = HasSplits(args_.kind) || args_.kind == CollectiveKind::kGather;
  if (blocks_by_sender && SizeOf(input_) <= options_.inline_bytes_max &&
      SizeOf(input_) <= BoardPost::kPayloadBytes - end) {
    post.flags |= NodePost::kCarried;
    CopyBytes(payload + end, input_.data(), SizeOf(input_));
  }
  std::memcpy(payload, &post, sizeof(post));
  lane_.SayCall(first_step_, CallWord(args_));
  posts_.assign(static_cast<size_t>(lane_.size()), NodePost());
  posts_[static_cast<size_t>(lane_.self())] = post;
  // Somebody's memory is private: it is this one's, so that all will work on pieces.
  if (!post.Has(NodePost::kShareable)) Stage(0);
}

absl::Status NodeCollectiveRun::ReadPost(int32_t member) {
  const NodePost& own = posts_[static_cast<size_t>(lane_.self())];
  NodePost& post = posts_[static_cast<size_t>(member)];
  // What else is there is only known of a member that calls the same.
  const uint64_t call = lane_.CallOf(member, first_step_);
  if (call != CallWord(args_)) return DifferentCalls(member, call, CallWord(args_));
  const std::byte* const payload = lane_.PayloadOf(member, first_step_);
  std::memcpy(&post, payload, sizeof(post));
  if (post.sequence != own.sequence) {
    return absl::InternalError(absl::StrCat("member ", member, " of the group is at batch ",
                                            post.sequence, " of the lane, this one at ",
                                            own.sequence));
  }
  if (HasSplits(args_.kind)) ReadSplits(member);
  return absl::OkStatus();
}

// What has come is not what was expected: nothing is taken of it, all others are served, and the
// lane goes on.
void NodeCollectiveRun::ReadSplits(int32_t member) {
  const std::byte* const splits = lane_.PayloadOf(member, first_step_) + sizeof(NodePost);
  const auto read = [splits](int32_t index) {
    int64_t bytes = 0;
    std::memcpy(&bytes, splits + sizeof(bytes) * index, sizeof(bytes));
    return bytes;
  };
  int64_t offset = 0;
  for (int32_t m = 0; m < lane_.self(); ++m) offset += read(m);
  splits_.offsets.push_back(offset);
  const auto index = static_cast<size_t>(member);
  const int64_t came = read(lane_.self()), expected = args_.output_block_bytes[index];
  if (came == expected) return;
  if (splits_.taken.empty()) {
    splits_.taken = args_.output_block_bytes;
    collective_.output_blocks = splits_.taken;
  }
  splits_.taken[index] = 0;
  const std::string one =
      absl::StrCat(came, " bytes from member ", member, ", expected ", expected);
  splits_.disagreement = absl::InvalidArgumentError(
      splits_.disagreement.ok()
          ? absl::StrCat("alltoall: member ", lane_.self(), " of the group has received ", one)
          : absl::StrCat(splits_.disagreement.message(), "; ", one));
}

absl::Status NodeCollectiveRun::ReadPosts() {
  uint32_t common = ~0u;
  int64_t largest_bytes = 0;
  const bool pulls = Pulls();
  const int32_t begin = pulls ? collective_.root : 0;
  const int32_t end = pulls ? begin + 1 : lane_.size();
  for (int32_t m = begin; m < end; ++m) {
    COORDD_RETURN_IF_ERROR(ReadPost(m));
    common &= posts_[static_cast<size_t>(m)].flags;
    largest_bytes = std::max(largest_bytes, posts_[static_cast<size_t>(m)].largest_block_bytes);
  }
  collective_.block_offsets = splits_.offsets;
  if ((common & NodePost::kCarried) != 0) {
    CopyCarried();
    lane_.Finish(first_step_);
    phase_ = Phase::kFinished;
    return splits_.disagreement;
  }
  if (exchange_ != nullptr) {
    mode_.shared = (common & NodePost::kShareable) != 0;
  } else if (pulls && (common & NodePost::kInputMapped) != 0) {
    mode_.piece_bytes = std::max(kSliceBytes, largest_bytes);
  } else if (!pulls && (common & NodePost::kShareable) != 0) {
    mode_ = NodeMode();
  } else {
    const int64_t pieces = (largest_bytes + mode_.piece_bytes - 1) / mode_.piece_bytes;
    mode_.pieces = std::max<int64_t>(1, pieces);
  }
  const int64_t result_bytes = std::max(SizeOf(args_.input), SizeOf(args_.output));
  mover_.Begin(collective_, mode_, posts_, result_bytes >= StreamBytesFrom());
  operations_.Begin(OperationsOf(collective_, mode_, 0));
  phase_ = Phase::kWorking;
  return absl::OkStatus();
}

// What of all members together does not fit the third-level cache. Of an allreduce among three or
// more every line of the result is stored several times, which costs less by the memory from the
// start.
int64_t NodeCollectiveRun::StreamBytesFrom() const {
  const int64_t least = std::min(options_.stream_bytes_min, kStreamBytesLeast);
  if (args_.kind == CollectiveKind::kAllreduce && lane_.size() > 2) return least;
  return std::max(least, 2 * options_.stream_bytes_min / lane_.size());
}

void NodeCollectiveRun::CopyCarried() {
  const bool alltoall = HasSplits(args_.kind);
  if (!alltoall && collective_.self != collective_.root) return;
  int64_t to = 0;
  for (int32_t m = 0; m < lane_.size(); ++m) {
    const size_t index = static_cast<size_t>(m);
    const std::byte* from = lane_.PayloadOf(m, first_step_) + sizeof(NodePost);
    if (alltoall)
      from += static_cast<int64_t>(sizeof(int64_t)) * lane_.size() + splits_.offsets[index];
    CopyBytes(args_.output.data() + to, from, collective_.output_blocks[index]);
    to += collective_.output_blocks[index];
  }
}

void NodeCollectiveRun::Stage(int64_t piece) {
  if (posts_[static_cast<size_t>(lane_.self())].Has(NodePost::kInputMapped)) return;
  left_bytes_ -= mover_.Stage(collective_, mode_, piece);
}

void NodeCollectiveRun::NextStep() {
  ++step_;
  if (!mode_.shared && step_ < mode_.pieces) Stage(step_);
  lane_.Reach(first_step_ + step_);
  phase_ = Phase::kWaiting;
}

NodeCollectiveRun::Progress NodeCollectiveRun::Work() {
  bool worked = false;
  while (!operations_.finished()) {
    if (left_bytes_ <= 0) return Progress::kMore;
    const NodeOperation& operation = operations_.operation();
    if (operation.exchange == NodeExchange::kEnds && !exchange_->Ended(operation.piece))
      return worked ? Progress::kMore : Progress::kBlocked;
    worked = true;
    const int64_t size_bytes = mover_.Perform(operation, step_, operations_.done_bytes(),
                                              std::min(left_bytes_, operations_.left_bytes()));
    left_bytes_ -= size_bytes;
    if (!operations_.Advance(size_bytes)) continue;
    if (operation.exchange == NodeExchange::kBegins) BeginExchange(operation);
    operations_.Next();
  }
  return Progress::kDone;
}

void NodeCollectiveRun::BeginExchange(const NodeOperation& operation) {
  const int64_t piece = operation.piece;
  const bool gathers = args_.kind == CollectiveKind::kAllgather;
  if (!gathers && args_.kind != CollectiveKind::kReducescatter) {
    const absl::Span<std::byte> slice = mover_.SliceOf(operation);
    return exchange_->Begin(piece, slice, slice);
  }
  const NodeParts parts = ExchangedParts(collective_, mode_, piece);
  const auto own_bytes =
      static_cast<size_t>(parts[static_cast<size_t>(collective_.node)].size_bytes);
  // Behind the end of a block that is smaller than others there is nothing.
  const size_t at = own_bytes == 0 ? 0 : static_cast<size_t>(piece * mode_.piece_bytes);
  if (gathers) {
    exchange_->Begin(piece, args_.input.subspan(at, own_bytes), args_.output, parts);
  } else {
    exchange_->Begin(piece, exchange_->Partial(piece), args_.output.subspan(at, own_bytes), parts);
  }
}

}  // namespace coordd
