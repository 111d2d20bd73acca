#include "worker/runtime/comm_maker.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
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

// Numbers of each member of the set, reduced; the caller's are replaced.
absl::Status Agree(Worker& worker, ProcessSetId process_set, std::string tensor, ReduceOp op,
                   absl::Span<int64_t> numbers, absl::Duration timeout) {
  Submission submission;
  submission.spec.name = std::move(tensor);
  submission.spec.kind = CollectiveKind::kAllreduce;
  submission.spec.dtype = DataType::kInt64;
  submission.spec.op = op;
  submission.spec.shape = {static_cast<int64_t>(numbers.size())};
  submission.spec.process_set = process_set;
  submission.input = submission.output = numbers.data();
  submission.timeout = timeout;
  COORDD_ASSIGN_OR_RETURN(const std::shared_ptr<Work> work,
                          worker.SubmitAndWait(std::move(submission), absl::InfiniteFuture()));
  return work->Wait(absl::InfiniteFuture());
}

// A number that this member has for a comm, and the lane that goes with it.
class Claim {
 public:
  Claim(GenerationPlane& plane, const std::vector<int32_t>& ranks) : plane_(plane) {
    for (int32_t rank : ranks) members_.push_back(Rank{rank});
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() { GiveUp(); }

  // Instead of the one before, if it is another.
  void Take(int64_t number) {
    if (taken_ && number == number_) return;
    GiveUp();
    number_ = number;
    taken_ = number < kMaxComms && plane_.comm_numbers.Take(static_cast<int32_t>(number));
    if (taken_) opened_ = plane_.executor->OpenComm(lane(), members_);
  }

  bool taken() const { return taken_; }
  bool has_lane() const { return taken_ && opened_.ok(); }
  // Why a number that is taken has no lane.
  absl::Status status() const { return opened_.status(); }
  LaneId lane() const { return LaneId{kFirstCommLane + static_cast<int32_t>(number_)}; }
  // REQUIRES: has_lane(). The lane is the caller's then.
  std::shared_ptr<MappedLane> Release() {
    taken_ = false;
    return *std::move(opened_);
  }

 private:
  void GiveUp() {
    if (has_lane()) plane_.executor->CloseComm(lane(), *std::move(opened_));
    taken_ = false;
    opened_ = nullptr;
  }

  GenerationPlane& plane_;
  std::vector<Rank> members_;
  int64_t number_ = 0;
  bool taken_ = false;
  absl::StatusOr<std::shared_ptr<MappedLane>> opened_ = nullptr;
};

// Whether all members have the same number, proposed without having asked, and a lane: then one
// allreduce was enough. Numbers are equal if and only if their squares have the square of the mean
// as their mean; a member that has joined adds zeros, which no number is here.
absl::StatusOr<bool> HaveGuessed(Worker& worker, ProcessSetId process_set,
                                 const std::string& tensor, int64_t proposed, bool has_lane,
                                 const BareComm::Needs& parts) {
  const int64_t own = proposed + 1;
  const int64_t size = static_cast<int64_t>(parts.ranks.size());
  int64_t numbers[] = {own, own * own, has_lane ? 1 : 0};
  COORDD_RETURN_IF_ERROR(
      Agree(worker, process_set, tensor, ReduceOp::kSum, absl::MakeSpan(numbers), parts.timeout));
  return numbers[0] == size * own && numbers[1] == size * own * own && numbers[2] == size;
}

// Tries once to make a lane with a number that is free on all members; whether one was.
absl::StatusOr<bool> FindLane(Worker& worker, ProcessSetId process_set, int attempt,
                              BareComm::Needs& parts) {
  const std::string tensor = absl::StrCat("coordd.comm/", parts.name, "/", attempt);
  GenerationPlane& plane = *parts.plane;
  Claim claim(plane, parts.ranks);
  int64_t number = plane.comm_numbers.Propose();
  claim.Take(number);
  COORDD_ASSIGN_OR_RETURN(bool agreed,
                          HaveGuessed(worker, process_set, absl::StrCat(tensor, "/guess"), number,
                                      claim.has_lane(), parts));
  if (!agreed) {
    COORDD_RETURN_IF_ERROR(Agree(worker, process_set, absl::StrCat(tensor, "/number"),
                                 ReduceOp::kMax, absl::MakeSpan(&number, 1), parts.timeout));
    if (number >= kMaxComms) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "comm ", parts.name, ": a rank makes at most ", kMaxComms, " comms in one generation"));
    }
    claim.Take(number);
    int64_t said = claim.has_lane() ? kTakes : claim.taken() ? kCannot : kIsTaken;
    COORDD_RETURN_IF_ERROR(Agree(worker, process_set, absl::StrCat(tensor, "/lane"), ReduceOp::kSum,
                                 absl::MakeSpan(&said, 1), parts.timeout));
    agreed = said == static_cast<int64_t>(parts.ranks.size());
    if (!agreed) {
      COORDD_RETURN_IF_ERROR(claim.status());
      if (said >= kCannot) {
        return absl::ResourceExhaustedError(
            absl::StrCat("comm ", parts.name, ": another member has no room for it"));
      }
      if (said >= kIsTaken) return false;
      return absl::FailedPreconditionError(
          absl::StrCat("comm ", parts.name, ": a member has joined, it has no more data"));
    }
  }
  parts.lane = claim.lane();
  parts.mapped = claim.Release();
  return true;
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
