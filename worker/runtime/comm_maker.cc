#include "worker/runtime/comm_maker.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/interfaces/lanes.h"

namespace coordd {
namespace {

// Another attempt follows when two comms of one rank wanted the same number at the same time.
constexpr int kMaxAttempts = 100;

// What members say of a number, so that the sum tells whether all said the first, or one the last.
constexpr int64_t kTakes = 1;
constexpr int64_t kIsTaken = int64_t{1} << 20;
constexpr int64_t kCannot = int64_t{1} << 40;

// One number of each member of the set, reduced.
absl::StatusOr<int64_t> Agree(Worker& worker, ProcessSetId process_set, std::string tensor,
                              ReduceOp op, int64_t number, absl::Duration timeout) {
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
                          worker.SubmitAndWait(std::move(submission), absl::InfiniteFuture()));
  COORDD_RETURN_IF_ERROR(work->Wait(absl::InfiniteFuture()));
  return number;
}

// Tries once to make a lane with a number that is free on all members; whether one was.
absl::StatusOr<bool> FindLane(Worker& worker, ProcessSetId process_set, int attempt,
                              BareComm::Needs& parts) {
  const std::string tensor = absl::StrCat("coordd.comm/", parts.name, "/", attempt);
  GenerationPlane& plane = *parts.plane;
  COORDD_ASSIGN_OR_RETURN(const int64_t number,
                          Agree(worker, process_set, absl::StrCat(tensor, "/number"),
                                ReduceOp::kMax, plane.comm_numbers.Propose(), parts.timeout));
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
  const absl::StatusOr<int64_t> said = Agree(worker, process_set, absl::StrCat(tensor, "/lane"),
                                             ReduceOp::kSum, says, parts.timeout);
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

}  // namespace

absl::StatusOr<std::unique_ptr<Comm>> MakeComm(Worker& worker, ProcessSetId process_set,
                                               BareComm::Needs parts) {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    COORDD_ASSIGN_OR_RETURN(const bool found, FindLane(worker, process_set, attempt, parts));
    if (found) return std::make_unique<BareComm>(std::move(parts));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("comm ", parts.name, ": ", kMaxAttempts,
                   " attempts to find a number that no other comm has"));
}

}  // namespace coordd
