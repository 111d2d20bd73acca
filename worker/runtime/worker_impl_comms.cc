// The part of WorkerImpl that makes comms, and memory for them.
#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/interfaces/lanes.h"
#include "worker/interfaces/peer_status.h"
#include "worker/runtime/bare_comm.h"
#include "worker/runtime/worker_runtime.h"

namespace coordd {
namespace {

constexpr size_t kMaxNameBytes = 256;
// Another attempt follows when two comms of one rank wanted the same number at the same time.
constexpr int kMaxAttempts = 100;

// What members say of a number, so that the sum tells whether all said the first, or one the last.
constexpr int64_t kTakes = 1;
constexpr int64_t kIsTaken = int64_t{1} << 20;
constexpr int64_t kCannot = int64_t{1} << 40;

}  // namespace

absl::StatusOr<int64_t> WorkerImpl::Agree(ProcessSetId process_set, std::string tensor, ReduceOp op,
                                          int64_t number, absl::Duration timeout) {
  Submission submission;
  submission.spec.name = std::move(tensor);
  submission.spec.kind = CollectiveKind::kAllreduce;
  submission.spec.dtype = DataType::kInt64;
  submission.spec.op = op;
  submission.spec.shape = {1};
  submission.spec.process_set = process_set;
  submission.input = submission.output = &number;
  submission.timeout = timeout;
  COORDD_ASSIGN_OR_RETURN(const std::shared_ptr<Work> work,
                          SubmitAndWait(std::move(submission), absl::InfiniteFuture()));
  COORDD_RETURN_IF_ERROR(work->Wait(absl::InfiniteFuture()));
  return number;
}

absl::StatusOr<std::unique_ptr<Comm>> WorkerImpl::CreateComm(ProcessSetId process_set,
                                                             const std::string& name,
                                                             absl::Duration timeout) {
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a comm whose name has ", name.size(),
                                                   " bytes, expected 1 to ", kMaxNameBytes));
  }
  if (options_.on_failure == OnFailure::kContinue) {
    return absl::UnimplementedError(
        absl::StrCat("comm ", name, ": its calls cannot be repeated with on_failure continue; ",
                     "expected end or raise"));
  }
  BareComm::Parts parts;
  parts.name = name;
  parts.plane = view->plane;
  COORDD_ASSIGN_OR_RETURN(parts.ranks, ProcessSetRanks(process_set));
  const auto self = std::find(parts.ranks.begin(), parts.ranks.end(), view->placement.rank);
  if (self == parts.ranks.end()) {
    return absl::InvalidArgumentError(absl::StrCat("comm ", name, ": rank ", view->placement.rank,
                                                   " is not in process set ", ToInt(process_set)));
  }
  parts.self = static_cast<int32_t>(self - parts.ranks.begin());
  parts.timeout = timeout > absl::ZeroDuration() ? timeout : options_.collective_timeout;
  parts.polling_threads = view->placement.local_size;
  parts.cores = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  parts.metrics = &runtime_->metrics;
  parts.clock = &clock_;
  parts.report_failure = [this, generation = view->placement.generation](const absl::Status& why) {
    runtime_->inbox.PushUnbounded(
        ConnectFailed{generation, why, SuspectOf(why), /*was_connected=*/true});
  };
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    COORDD_ASSIGN_OR_RETURN(const bool found, FindLane(process_set, attempt, parts));
    if (found) return std::make_unique<BareComm>(std::move(parts));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "comm ", name, ": ", kMaxAttempts, " attempts to find a number that no other comm has"));
}

absl::StatusOr<bool> WorkerImpl::FindLane(ProcessSetId process_set, int attempt,
                                          BareComm::Parts& parts) {
  const std::string tensor = absl::StrCat("coordd.comm/", parts.name, "/", attempt);
  GenerationPlane& plane = *parts.plane;
  COORDD_ASSIGN_OR_RETURN(const int64_t number,
                          Agree(process_set, absl::StrCat(tensor, "/number"), ReduceOp::kMax,
                                plane.comm_numbers.Propose(), parts.timeout));
  if (number >= kMaxComms) {
    return absl::ResourceExhaustedError(absl::StrCat("comm ", parts.name, ": a rank makes at most ",
                                                     kMaxComms, " comms in one generation"));
  }
  parts.lane = LaneId{kFirstCommLane + static_cast<int32_t>(number)};
  const bool taken = plane.comm_numbers.Take(static_cast<int32_t>(number));
  absl::StatusOr<std::shared_ptr<MappedLane>> opened = nullptr;
  std::vector<Rank> members;
  for (int32_t rank : parts.ranks) members.push_back(Rank{rank});
  const int64_t size = static_cast<int64_t>(members.size());
  if (taken) opened = plane.executor->OpenComm(parts.lane, std::move(members));
  const bool has_lane = taken && opened.ok();
  const int64_t says = has_lane ? kTakes : taken ? kCannot : kIsTaken;
  const absl::StatusOr<int64_t> said =
      Agree(process_set, absl::StrCat(tensor, "/lane"), ReduceOp::kSum, says, parts.timeout);
  if (said.ok() && *said == size) {
    parts.mapped = *std::move(opened);
    return true;
  }
  if (has_lane) plane.executor->CloseComm(parts.lane, *std::move(opened));
  COORDD_RETURN_IF_ERROR(said.status());
  COORDD_RETURN_IF_ERROR(opened.status());
  if (*said >= kCannot) {
    return absl::ResourceExhaustedError(
        absl::StrCat("comm ", parts.name, ": another member has no room for it"));
  }
  if (*said >= kIsTaken) return false;
  return absl::FailedPreconditionError(
      absl::StrCat("comm ", parts.name, ": a member has joined, it has no more data"));
}

absl::StatusOr<void*> WorkerImpl::AllocateMemory(int64_t size_bytes) {
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  // With kContinue a collective is repeated in the next generation, while somebody may still be
  // writing the result of the last one.
  return memory_->Allocate(size_bytes, view->plane, options_.on_failure != OnFailure::kContinue);
}

absl::Status WorkerImpl::FreeMemory(void* memory) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  return memory_->Free(memory);
}

absl::StatusOr<void*> WorkerImpl::RegisterMemory(const FileRange& file, absl::Duration timeout) {
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  absl::StatusOr<void*> memory =
      memory_->Register(file, view->plane, options_.on_failure != OnFailure::kContinue,
                        DeadlineOf(timeout, clock_.Now()));
  if (memory.ok()) return memory;
  return VerdictOn(*view->plane, memory.status());
}

// Somebody's socket, or the store, may tell of a loss before coordd has said who it is.
absl::Status WorkerImpl::VerdictOn(GenerationPlane& plane, absl::Status status) const {
  constexpr absl::Duration kPatience = absl::Seconds(10);
  const bool lost = absl::IsUnavailable(status) || absl::IsAborted(status);
  const absl::Status ended =
      lost ? plane.end.Await(clock_, clock_.Now() + kPatience) : plane.end.status();
  if (ended.ok()) return status;
  if (plane.devices != nullptr) plane.devices->ToldOfTheEnd();
  return ended;
}

absl::Status WorkerImpl::UnregisterMemory(void* memory, absl::Duration timeout) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  const absl::StatusOr<ViewPtr> view = CurrentView();
  const absl::Status status = memory_->Unregister(memory, DeadlineOf(timeout, clock_.Now()));
  if (status.ok() || absl::IsInvalidArgument(status) || !view.ok()) return status;
  return VerdictOn(*(*view)->plane, status);
}

absl::Status WorkerImpl::CheckMapped(const void* memory, int64_t size_bytes) const {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  return memory_->CheckMapped(memory, size_bytes);
}

}  // namespace coordd
