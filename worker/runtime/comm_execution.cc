#include "worker/runtime/comm_execution.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/counted.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/protocol/tensor_spec.h"
#include "worker/interfaces/collective_args.h"
#include "worker/interfaces/idle_wait.h"
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
// Of a generation that has ended by goodbyes coordd says nothing more about who dies in it: who
// waits for others that have not left does so for no longer than this.
constexpr absl::Duration kPatienceAfterGoodbyes = absl::Seconds(10);
// A call that goes on for so long is worth a line, as a tensor that waits is to coordd
// (--stall-warning).
constexpr absl::Duration kLate = absl::Seconds(10);
// How often a call that waits looks whom it waits for, for coordd.
constexpr absl::Duration kTellEvery = absl::Seconds(1);

// Of one buffer, in blocks.
bool HasInput(CollectiveKind kind) {
  return kind != CollectiveKind::kBroadcast && kind != CollectiveKind::kBarrier;
}

// Whether no member can come to its end before all have called it.
bool NeedsAll(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kAllgather ||
         kind == CollectiveKind::kReducescatter || kind == CollectiveKind::kAlltoall ||
         kind == CollectiveKind::kBarrier;
}

// How many bytes they are together.
size_t SetBlocks(absl::Span<const int64_t> counts, DataType dtype, std::vector<int64_t>& blocks) {
  size_t sum_bytes = 0;
  blocks.clear();
  for (const int64_t count : counts) {
    blocks.push_back(count * SizeOf(dtype));
    sum_bytes += static_cast<size_t>(blocks.back());
  }
  return sum_bytes;
}

}  // namespace

CommExecution::CommExecution(Needs parts)
    : needs_(std::move(parts)),
      backend_name_(needs_.plane->executor->backend_name()),
      account_(needs_.calls) {}

// What a failed collective has said stays there for those who still look, as long as the generation
// lives.
CommExecution::~CommExecution() {
  if (failure_.ok()) needs_.plane->executor->CloseComm(needs_.lane, needs_.mapped);
}

absl::Status CommExecution::Named(const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrCat("comm ", needs_.name, ": ", status.message()));
}

absl::Status CommExecution::CheckState() const {
  if (needs_.plane->end.aborts()) return needs_.plane->end.status();
  if (failure_.ok()) return absl::OkStatus();
  if (needs_.plane->end.ended()) return needs_.plane->end.status();
  return Named(absl::FailedPreconditionError(
      absl::StrCat("an earlier call failed, expected a new comm: ", failure_.message())));
}

absl::Status CommExecution::Check(const CommCall& call) const {
  if (call.count < 0 || call.count > kMaxCount / size()) {
    return absl::InvalidArgumentError(absl::StrCat(Name(call.kind), ": count is ", call.count,
                                                   ", expected 0 to ", kMaxCount / size()));
  }
  if (call.kind == CollectiveKind::kBroadcast && (call.root < 0 || call.root >= size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("broadcast: root is ", call.root, ", expected a member, 0 to ", size() - 1));
  }
  if (call.splits != nullptr) {
    COORDD_RETURN_IF_ERROR(CheckSplits("sent", call.splits->sent, call.input));
    return CheckSplits("received", call.splits->received, call.output);
  }
  const bool needs_memory = call.count > 0 && call.kind != CollectiveKind::kBarrier;
  if (needs_memory && (call.output == nullptr || (HasInput(call.kind) && call.input == nullptr))) {
    return absl::InvalidArgumentError(absl::StrCat(Name(call.kind), ": a buffer of ",
                                                   Counted(call.count, "element"), " is NULL"));
  }
  return absl::OkStatus();
}

absl::Status CommExecution::CheckSplits(absl::string_view which, absl::Span<const int64_t> counts,
                                        const void* buffer) const {
  const auto members = static_cast<size_t>(size());
  if (counts.size() != members) {
    return absl::InvalidArgumentError(absl::StrCat(
        "alltoall: ", counts.size(), " counts of what is ", which, ", expected ", members));
  }
  int64_t sum = 0;
  for (const int64_t count : counts) {
    if (count < 0 || count > kMaxCount - sum) {
      return absl::InvalidArgumentError(
          absl::StrCat("alltoall: a count of what is ", which, " is ", count,
                       ", expected counts from 0 on, of at most ", kMaxCount, " together"));
    }
    sum += count;
  }
  if (sum == 0 || buffer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("alltoall: the buffer of ", Counted(sum, "element that is", "elements that are"),
                   " ", which, " is NULL"));
}

absl::Status CommExecution::Prepare(const CommCall& call) {
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
  size_t input_bytes = by_receiver ? all : block, output_bytes = by_sender ? all : block;
  args_.equal_blocks = call.splits == nullptr;
  if (args_.equal_blocks) {
    args_.input_block_bytes.assign(by_receiver ? members : 0, static_cast<int64_t>(block));
    args_.output_block_bytes.assign(by_sender ? members : 0, static_cast<int64_t>(block));
  } else {
    input_bytes = SetBlocks(call.splits->sent, call.dtype, args_.input_block_bytes);
    output_bytes = SetBlocks(call.splits->received, call.dtype, args_.output_block_bytes);
  }
  args_.input = {};
  args_.output = {};
  if (HasInput(kind))
    args_.input = absl::MakeSpan(static_cast<const std::byte*>(call.input), input_bytes);
  if (kind != CollectiveKind::kBarrier)
    args_.output = absl::MakeSpan(static_cast<std::byte*>(call.output), output_bytes);
  COORDD_RETURN_IF_ERROR(ValidateArgs(args_, Rank{needs_.self}, size()));
  prepared_ = call;
  return absl::OkStatus();
}

absl::Status CommExecution::Accept(const CommCall& call) {
  COORDD_RETURN_IF_ERROR(CheckState());
  if (prepared_ != call) COORDD_RETURN_IF_ERROR(Prepare(call));
  ++args_.sequence;
  scaled_ = in_vain_ = false;
  deadline_ = late_at_ = absl::InfinitePast();
  return absl::OkStatus();
}

bool CommExecution::IsInline() const {
  return needs_.mapped != nullptr &&
         NodeInlineRun::Fits(args_, size(), needs_.mapped->options.inline_bytes_max);
}

void CommExecution::MakeRun() {
  if (needs_.mapped == nullptr) return;
  MappedLane& lane = *needs_.mapped;
  if (IsInline()) {
    inline_.emplace(args_, *lane.node);
  } else {
    run_.emplace(args_, *lane.node, lane.staging, lane.options);
  }
}

absl::Status CommExecution::Begin(const CommCall& call) {
  COORDD_RETURN_IF_ERROR(Accept(call));
  MakeRun();
  return absl::OkStatus();
}

absl::Status CommExecution::Run(const CommCall& call) {
  COORDD_RETURN_IF_ERROR(Accept(call));
  if (IsInline()) {  // on the stack, where the compiler keeps it in registers: a sixth of the call
    NodeInlineRun run(args_, *needs_.mapped->node);
    return Finish(*Await(run, absl::InfiniteDuration()));
  }
  MakeRun();
  return *Go(absl::InfiniteDuration());
}

std::optional<absl::Status> CommExecution::Go(absl::Duration most) {
  if (needs_.mapped == nullptr) {
    std::optional<absl::Status> ended = GoByMessages(most);
    if (!ended.has_value()) return std::nullopt;
    direct_.reset();
    return Finish(*std::move(ended));
  }
  if (inline_.has_value()) {
    std::optional<absl::Status> ended = Await(*inline_, most);
    if (!ended.has_value()) return std::nullopt;
    inline_.reset();
    return Finish(*std::move(ended));
  }
  std::optional<absl::Status> ended = Await(*run_, most);
  if (!ended.has_value()) return std::nullopt;
  run_.reset();
  return Finish(*std::move(ended));
}

absl::Status CommExecution::Finish(absl::Status status) {
  account_.GoesOn();
  if (status.ok() && prepared_->op == ReduceOp::kAverage && !scaled_) Divide();
  Count(status);
  // On mapped memory that is a member whose splits are not this one's: all have come to the end.
  const bool goes_on = absl::IsInvalidArgument(status) && needs_.mapped != nullptr;
  if (status.ok() || goes_on) return status;
  failure_ = status;
  needs_.plane->comm_failed.store(true, std::memory_order_release);
  if (needs_.mapped != nullptr) needs_.mapped->node->GiveUp();
  return status;
}

template <typename Collective>
bool CommExecution::IsInVain(const Collective& run) const {
  for (int32_t m = 0; m < size(); ++m)
    // In this order: it may have said its last step a moment ago.
    if (needs_.mapped->node->EndingOf(m) != NodeLane::Ending::kNone && run.WaitsFor(m)) return true;
  return false;
}

template <typename Collective>
absl::Status CommExecution::Desertion(const Collective& run) {
  const bool again = std::exchange(in_vain_, false);
  for (int32_t m = 0; m < size(); ++m) {
    const NodeLane::Ending ending = needs_.mapped->node->EndingOf(m);
    if (ending == NodeLane::Ending::kNone || !run.WaitsFor(m)) continue;
    in_vain_ = true;
    if (!again) break;
    return Named(absl::AbortedError(absl::StrCat(
        Name(args_.kind), " number ", args_.sequence, ": rank ",
        needs_.ranks[static_cast<size_t>(m)],
        ending == NodeLane::Ending::kLeft ? " has left the comm, and calls this no more"
                                          : " has given up: a call of this comm failed there")));
  }
  return absl::OkStatus();
}

template <typename Collective>
absl::Status CommExecution::Lateness(const Collective& run, absl::Duration waited) const {
  std::vector<int32_t> missing;
  for (int32_t m = 0; m < size(); ++m) {
    if (run.WaitsFor(m)) missing.push_back(needs_.ranks[static_cast<size_t>(m)]);
  }
  // Nobody: the last one has come a moment ago, or other nodes were waited for.
  const std::string who =
      missing.empty() ? "the others" : absl::StrCat("rank ", absl::StrJoin(missing, ", "));
  return Named(absl::DeadlineExceededError(
      absl::StrCat(Name(args_.kind), " number ", args_.sequence, ": ", who,
                   " had not come as far within ", absl::FormatDuration(waited))));
}

// For who sees this program's stderr, and not coordd's: the first of those who wait says whom the
// call lacks, long before its timeout, which is half an hour where torch chooses it.
template <typename Collective>
void CommExecution::TellLateness(const Collective& run) {
  late_at_ = absl::InfiniteFuture();
  bool lacks_somebody = false;
  for (int32_t m = 0; m < size(); ++m) {
    if (run.WaitsFor(m)) {
      lacks_somebody = true;
    } else if (m < needs_.self) {
      return;
    }
  }
  if (!lacks_somebody) return;  // it has come a moment ago
  COORDD_LOG(kWarning, Lateness(run, kLate).message(), "; this rank waits up to ",
             absl::FormatDuration(needs_.timeout));
}

WaitingCall CommExecution::Waiting() const {
  return {.comm = needs_.name,
          .call = absl::StrCat(Name(args_.kind), " number ", args_.sequence),
          .since = called_at_};
}

template <typename Collective>
void CommExecution::NoteWaiting(const Collective& run, absl::Time now) {
  tell_at_ = now + kTellEvery;
  WaitingCall waiting = Waiting();
  for (int32_t m = 0; m < size(); ++m)
    if (run.WaitsFor(m)) waiting.missing.push_back(needs_.ranks[static_cast<size_t>(m)]);
  account_.Waits(std::move(waiting));
}

// Messages do not tell whose are missing in the end: they come by way of others.
void CommExecution::NoteWaitingForMessages() {
  WaitingCall waiting = Waiting();
  if (NeedsAll(args_.kind)) {
    waiting.needs_all_of = needs_.process_set;
  } else if (args_.kind == CollectiveKind::kBroadcast && ToInt(args_.root) != needs_.self) {
    waiting.missing = {needs_.ranks[static_cast<size_t>(ToInt(args_.root))]};
  }
  account_.Waits(std::move(waiting));
}

template <typename Collective>
std::optional<absl::Status> CommExecution::Await(Collective& run, absl::Duration most) {
  const GenerationEnd& end = needs_.plane->end;
  IdleWait wait(needs_.polling_threads, needs_.cores);
  absl::Time until = absl::InfinitePast(), give_up = until;  // not known before they matter
  bool is_late = false;
  while (true) {
    // Looked at before: what a rank has said before it ended counts.
    const bool ended = end.ended();
    const bool moved = run.Advance();
    if (run.finished()) return run.status().ok() ? absl::OkStatus() : Named(run.status());
    if (ended && (end.aborts() || IsInVain(run))) return end.status();
    if (moved) {
      wait.Reset();
      give_up = absl::InfinitePast();
      continue;
    }
    if (is_late) return Lateness(run, needs_.timeout);
    if (!wait.Wait({&needs_.mapped->node->bell(), /*suffices=*/true})) continue;
    const absl::Time now = needs_.clock->Now();
    if (deadline_ == absl::InfinitePast()) {
      deadline_ = now + needs_.timeout;
      called_at_ = now;
      tell_at_ = now + kTellEvery;
    }
    if (until == absl::InfinitePast()) until = now + most;
    if (ended && give_up == absl::InfinitePast()) give_up = now + kPatienceAfterGoodbyes;
    if (ended && now >= std::min(give_up, deadline_)) return end.status();
    is_late = now >= deadline_;
    if (is_late) continue;  // somebody may have come while it slept
    if (late_at_ == absl::InfinitePast()) late_at_ = now + kLate;
    if (now >= late_at_) TellLateness(run);
    if (now >= tell_at_) {
      NoteWaiting(run, now);
      if (!ended) COORDD_RETURN_IF_ERROR(Desertion(run));
    }
    if (now >= until) return std::nullopt;
  }
}

std::optional<absl::Status> CommExecution::GoByMessages(absl::Duration most) {
  GenerationPlane& plane = *needs_.plane;
  if (direct_ == nullptr) {
    const std::optional<absl::Status> ended = plane.executor->RunAgain(
        args_, needs_.timeout, std::min(most, kTellEvery), plane.end, direct_);
    if (ended.has_value()) return ended->ok() ? *ended : FailureByMessages(*ended);
    called_at_ = needs_.clock->Now();
  }
  absl::Time now = needs_.clock->Now();
  const absl::Time until = now + most;
  if (direct_ == nullptr) direct_ = plane.executor->BeginDirect(args_, now + needs_.timeout);
  if (direct_ == nullptr)
    return FailureByMessages(absl::AbortedError("the data plane has stopped"));
  while (true) {
    const std::optional<absl::Status> ended =
        plane.executor->GoOnDirect(*direct_, std::min(until, now + kTellEvery), plane.end);
    if (ended.has_value()) return ended->ok() ? *ended : FailureByMessages(*ended);
    now = needs_.clock->Now();
    NoteWaitingForMessages();
    if (now >= until) return std::nullopt;
  }
}

absl::Status CommExecution::FailureByMessages(const absl::Status& status) const {
  GenerationPlane& plane = *needs_.plane;
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

void CommExecution::Divide() const {
  std::byte* const output = args_.output.data();
  if (IsInteger(prepared_->dtype)) {
    CopyAveraged(prepared_->dtype, 1.0, size(), output, output, prepared_->count);
  } else {
    Scale(prepared_->dtype, 1.0 / size(), output, prepared_->count);
  }
}

void CommExecution::Count(const absl::Status& status) {
  const CollectiveKind kind = args_.kind;
  std::shared_ptr<WorkerMetrics::Tally>& tally = tallies_[static_cast<size_t>(kind)];
  const bool ended = (!status.ok() || tally == nullptr) && needs_.plane->end.ended();
  if (ended) return;
  if (!status.ok()) {
    needs_.metrics->RecordCollective(kind, backend_name_, status.code(), 0);
    return;
  }
  if (tally == nullptr) tally = needs_.metrics->OpenTally(kind, backend_name_);
  // Of the tensor that the named call would have: the input, of a broadcast the buffer.
  const size_t bytes = HasInput(kind) ? args_.input.size() : args_.output.size();
  tally->Record(static_cast<int64_t>(bytes));
  account_.Count(static_cast<int64_t>(bytes));
}

}  // namespace coordd
