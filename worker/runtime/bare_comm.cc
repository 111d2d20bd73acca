#include "worker/runtime/bare_comm.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/protocol/tensor_spec.h"
#include "worker/interfaces/collective_args.h"
#include "worker/interfaces/idle_wait.h"
#include "worker/node/mapped_lane.h"
#include "worker/node/node_inline.h"
#include "worker/numeric/integer_average.h"
#include "worker/numeric/reduce_kernels.h"

namespace coordd {
namespace {

// Elements of a call: far beyond any memory, so that no size overflows.
constexpr int64_t kMaxCount = int64_t{1} << 44;
// WorkerState ends the generation when coordd has not said within a second who is to blame for a
// failure of the data plane; a control thread that does not run for a while gets ten times that.
constexpr absl::Duration kVerdictPatience = absl::Seconds(10);

// Of one buffer, in blocks.
bool HasInput(CollectiveKind kind) {
  return kind != CollectiveKind::kBroadcast && kind != CollectiveKind::kBarrier;
}

}  // namespace

BareComm::BareComm(Needs parts)
    : needs_(std::move(parts)), backend_name_(needs_.plane->executor->backend_name()) {}

BareComm::~BareComm() {
  if (fork_guard_.InChild()) {
    // Its threads are not there, and where its memory was mapped may be somebody else's: both are
    // left alone for good.
    static_cast<void>(std::make_unique<Needs>(needs_).release());
    return;
  }
  // What a failed collective has said stays there for those who still look, as long as the
  // generation lives.
  if (failure_.ok()) needs_.plane->executor->CloseComm(needs_.lane, needs_.mapped);
}

absl::Status BareComm::Named(const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrCat("comm ", needs_.name, ": ", status.message()));
}

absl::Status BareComm::CheckState() const {
  if (needs_.plane->end.ended()) return needs_.plane->end.status();
  if (failure_.ok()) return absl::OkStatus();
  return Named(absl::FailedPreconditionError(
      absl::StrCat("an earlier call failed, expected a new comm: ", failure_.message())));
}

absl::Status BareComm::Check(const CommCall& call) const {
  if (call.count < 0 || call.count > kMaxCount / size()) {
    return absl::InvalidArgumentError(absl::StrCat(Name(call.kind), ": count is ", call.count,
                                                   ", expected 0 to ", kMaxCount / size()));
  }
  if (call.kind == CollectiveKind::kBroadcast && (call.root < 0 || call.root >= size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("broadcast: root is ", call.root, ", expected a member, 0 to ", size() - 1));
  }
  const bool needs_memory = call.count > 0 && call.kind != CollectiveKind::kBarrier;
  if (needs_memory && (call.output == nullptr || (HasInput(call.kind) && call.input == nullptr))) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(call.kind), ": a buffer of ", call.count, " elements is NULL"));
  }
  return absl::OkStatus();
}

absl::Status BareComm::Prepare(const CommCall& call) {
  prepared_.reset();
  COORDD_RETURN_IF_ERROR(Check(call));
  const size_t members = needs_.ranks.size();
  const size_t block = static_cast<size_t>(call.count * SizeOf(call.dtype));
  const size_t all = block * members;
  const CollectiveKind kind = call.kind;
  args_.kind = kind;
  args_.dtype = call.dtype;
  args_.op = call.op == ReduceOp::kAverage ? ReduceOp::kSum : call.op;
  const bool divides =
      call.op == ReduceOp::kAverage && !IsInteger(call.dtype) && call.dtype != DataType::kBool;
  args_.scale = divides ? 1.0 / size() : 1.0;
  args_.scaled = divides ? &scaled_ : nullptr;
  args_.lane = needs_.lane;
  args_.group = ProcessSetId{ToInt(needs_.lane)};
  args_.root = Rank{call.root};
  const bool by_receiver = InputIsByRank(kind), by_sender = FirstDimensionMayDiffer(kind);
  args_.input_block_bytes.assign(by_receiver ? members : 0, static_cast<int64_t>(block));
  args_.output_block_bytes.assign(by_sender ? members : 0, static_cast<int64_t>(block));
  args_.input = {};
  args_.output = {};
  if (HasInput(kind)) {
    args_.input =
        absl::MakeSpan(static_cast<const std::byte*>(call.input), by_receiver ? all : block);
  }
  if (kind != CollectiveKind::kBarrier)
    args_.output = absl::MakeSpan(static_cast<std::byte*>(call.output), by_sender ? all : block);
  args_.equal_blocks = true;
  COORDD_RETURN_IF_ERROR(ValidateArgs(args_, Rank{needs_.self}, size()));
  prepared_ = call;
  return absl::OkStatus();
}

absl::Status BareComm::Run(const CommCall& call) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  if (in_call_.exchange(true, std::memory_order_acquire)) {
    return Named(absl::FailedPreconditionError(
        "another thread is in a call, expected one thread at a time"));
  }
  absl::Status status = CheckState();
  if (status.ok() && prepared_ != call) status = Prepare(call);
  if (status.ok()) {
    ++args_.sequence;
    scaled_ = false;
    status = needs_.mapped != nullptr ? RunMapped() : RunByMessages();
    if (status.ok() && call.op == ReduceOp::kAverage && !scaled_) Divide(call);
    if (!status.ok()) {
      failure_ = status;
      needs_.plane->comm_failed.store(true, std::memory_order_release);
    }
    Count(call, status);
  }
  in_call_.store(false, std::memory_order_release);
  return status;
}

absl::Status BareComm::RunMapped() {
  MappedLane& lane = *needs_.mapped;
  if (NodeInlineRun::Fits(args_, size(), lane.options.inline_bytes_max)) {
    NodeInlineRun run(args_, *lane.node);
    return Await(run, lane.node->bell());
  }
  NodeCollectiveRun run(args_, *lane.node, lane.staging, lane.options);
  const absl::Status status = Await(run, lane.node->bell());
  return status.ok() && !run.status().ok() ? Named(run.status()) : status;
}

template <typename Collective>
absl::Status BareComm::Await(Collective& run, Doorbell& bell) {
  const GenerationEnd& end = needs_.plane->end;
  IdleWait wait(needs_.polling_threads, needs_.cores);
  absl::Time deadline = absl::InfinitePast();  // not known before it matters
  while (true) {
    // Looked at before: what a rank has said before it ended counts.
    const bool ended = end.ended();
    const bool moved = run.Advance();
    if (run.finished()) break;
    if (ended) return end.status();
    if (moved) {
      wait.Reset();
      continue;
    }
    if (!wait.Wait({&bell, /*suffices=*/true})) continue;
    const absl::Time now = needs_.clock->Now();
    if (deadline == absl::InfinitePast()) deadline = now + needs_.timeout;
    if (now < deadline) continue;
    std::vector<int32_t> missing;
    for (int32_t m = 0; m < size(); ++m) {
      if (run.WaitsFor(m)) missing.push_back(needs_.ranks[static_cast<size_t>(m)]);
    }
    return Named(absl::DeadlineExceededError(absl::StrCat(
        Name(args_.kind), " number ", args_.sequence, ": rank ", absl::StrJoin(missing, ", "),
        " had not come as far within ", absl::FormatDuration(needs_.timeout))));
  }
  return absl::OkStatus();
}

absl::Status BareComm::RunByMessages() {
  GenerationPlane& plane = *needs_.plane;
  const absl::Time deadline = needs_.clock->Now() + needs_.timeout;
  const absl::Status status = plane.executor->RunDirect(args_, deadline, plane.end);
  if (status.ok()) return status;
  if (plane.end.ended()) return plane.end.status();
  needs_.report_failure(status);
  // Nobody else can execute anything either.
  const absl::Status verdict =
      plane.end.Await(*needs_.clock, needs_.clock->Now() + kVerdictPatience);
  if (absl::IsDeadlineExceeded(status)) {
    return Named(
        absl::DeadlineExceededError(absl::StrCat(Name(args_.kind), " number ", args_.sequence, ": ",
                                                 status.message(), "; ", verdict.message())));
  }
  return verdict.ok() ? Named(status) : verdict;
}

void BareComm::Divide(const CommCall& call) const {
  std::byte* const output = args_.output.data();
  if (IsInteger(call.dtype)) {
    CopyAveraged(call.dtype, 1.0, size(), output, output, call.count);
  } else {
    Scale(call.dtype, 1.0 / size(), output, call.count);
  }
}

void BareComm::Count(const CommCall& call, const absl::Status& status) {
  if (!status.ok()) {
    if (!needs_.plane->end.ended())
      needs_.metrics->RecordCollective(call.kind, backend_name_, status.code(), 0);
    return;
  }
  std::shared_ptr<WorkerMetrics::Tally>& tally = tallies_[static_cast<size_t>(call.kind)];
  if (tally == nullptr) tally = needs_.metrics->OpenTally(call.kind, backend_name_);
  // Of the tensor that the named call would have: the input, of a broadcast the buffer.
  const size_t bytes = HasInput(call.kind) ? args_.input.size() : args_.output.size();
  tally->Record(static_cast<int64_t>(bytes));
}

}  // namespace coordd
