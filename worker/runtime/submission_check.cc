#include "worker/runtime/submission_check.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/protocol/protocol_bounds.h"
#include "common/protocol/tensor_spec.h"
#include "worker/execute/worker_errors.h"

namespace coordd {
namespace {

absl::Status Invalid(const TensorSpec& spec, absl::string_view found, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", spec.name, ": ", found, ", expected ", expected));
}

int32_t SizeOf(const SubmissionPlace& place) {
  return place.set == nullptr ? place.world_size : static_cast<int32_t>(place.set->size());
}

bool Contains(const SubmissionPlace& place, int32_t rank) {
  return place.set == nullptr || std::binary_search(place.set->begin(), place.set->end(), rank);
}

// Whether there is such a device is known to who copies from it.
absl::Status CheckMemory(const TensorSpec& spec, const TensorBuffers& buffers) {
  const bool on_device = spec.memory == MemoryKind::kCuda;
  if (on_device == (buffers.device >= 0)) return absl::OkStatus();
  return Invalid(spec,
                 absl::StrCat("memory of kind ", Name(spec.memory), " on device ", buffers.device),
                 "a device for memory of kind cuda, and -1 for the host's");
}

// Who takes part: the caller, and the ranks that the tensor names.
absl::Status CheckRanks(const TensorSpec& spec, const SubmissionPlace& place) {
  const auto set = [&] {
    return absl::StrCat("a rank of process set ", ToInt(spec.process_set), " [",
                        absl::StrJoin(*place.set, ", "), "]");
  };
  if (!Contains(place, place.rank)) return Invalid(spec, absl::StrCat("rank ", place.rank), set());
  if (HasRoot(spec.kind) && !Contains(place, spec.root_rank))
    return Invalid(spec, absl::StrCat("root rank ", spec.root_rank), set());
  if (IsPairwise(spec.kind) && spec.peer_rank == place.rank) {
    return Invalid(spec, absl::StrCat(Name(spec.kind), " between rank ", place.rank, " and itself"),
                   "another rank");
  }
  if (spec.kind == CollectiveKind::kJoin && (spec.name != kJoinName || !spec.shape.empty())) {
    return Invalid(spec, absl::StrCat("a join of shape ", ShapeString(spec.shape)),
                   absl::StrCat("the name ", kJoinName, " and no elements"));
  }
  return absl::OkStatus();
}

absl::Status CheckSplits(const TensorSpec& spec, int32_t world_size, std::vector<int64_t>& splits) {
  if (!HasSplits(spec.kind)) {
    if (splits.empty()) return absl::OkStatus();
    return Invalid(spec, absl::StrCat(Name(spec.kind), " with splits"), "none");
  }
  const int64_t rows = spec.shape[0];
  if (splits.empty()) {
    if (rows % world_size != 0)
      return Invalid(spec, absl::StrCat("alltoall of ", Counted(rows, "row"), " without splits"),
                     absl::StrCat("a multiple of ", world_size, " ranks"));
    splits.assign(static_cast<size_t>(world_size), rows / world_size);
    return absl::OkStatus();
  }
  int64_t sum = 0;
  bool valid = static_cast<int32_t>(splits.size()) == world_size;
  for (int64_t split : splits) {
    // Each is bounded by the rows, so that the sum cannot overflow.
    valid = valid && split >= 0 && split <= rows - sum;
    if (valid) sum += split;
  }
  if (!valid || sum != rows)
    return Invalid(spec, absl::StrCat("splits [", absl::StrJoin(splits, ", "), "]"),
                   absl::StrCat(Counted(world_size, "number that adds", "numbers that add"),
                                " up to ", Counted(rows, "row")));
  return absl::OkStatus();
}

// Which buffers a rank must bring for a collective of one kind.
struct Buffers {
  bool reads = true;
  bool writes = true;
  bool may_allocate = false;  // the runtime makes an output that is not given
};

Buffers BuffersOf(const TensorSpec& spec, int32_t rank) {
  const bool root = spec.root_rank == rank;
  if (HasRows(spec.kind)) return {.writes = root || !HasRoot(spec.kind), .may_allocate = true};
  switch (spec.kind) {
    case CollectiveKind::kBroadcast:
      return {.reads = root};
    case CollectiveKind::kReduce:
      return {.writes = root};
    case CollectiveKind::kSend:
      return {.writes = false};
    case CollectiveKind::kReceive:
      return {.reads = false};
    default:
      return {};
  }
}

absl::Status CheckBuffers(const TensorSpec& spec, const TensorBuffers& buffers, int32_t rank) {
  if (!HasPayload(spec.kind)) return absl::OkStatus();
  const bool empty = SizeBytes(spec) == 0;
  const Buffers needs = BuffersOf(spec, rank);
  if (buffers.input == nullptr && !empty && needs.reads)
    return Invalid(spec, "no input", Counted(SizeBytes(spec), "byte"));
  if (buffers.output == nullptr && !empty && needs.writes && !needs.may_allocate)
    return Invalid(spec, absl::StrCat(Name(spec.kind), " without an output"),
                   Counted(SizeBytes(spec), "byte"));
  if (buffers.output_capacity_bytes < 0)
    return Invalid(spec,
                   absl::StrCat("an output of ", Counted(buffers.output_capacity_bytes, "byte")),
                   "at least 0");
  const bool in_place = buffers.output != nullptr && buffers.output == buffers.input;
  if (in_place && !empty && HasRows(spec.kind))
    return Invalid(spec, absl::StrCat(Name(spec.kind), " in place"), "an output of its own");
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSpec(const TensorSpec& spec, const SubmissionPlace& place) {
  if (!IsUtf8(spec.name) || !IsUtf8(spec.group)) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ",
                                                   ShortenedText(spec.name, kMaxTensorNameBytes),
                                                   ": a name that is not UTF-8, expected UTF-8"));
  }
  COORDD_RETURN_IF_ERROR(Validate(spec, place.world_size));
  return CheckRanks(spec, place);
}

absl::StatusOr<TensorJob> MakeJob(SharedSpec spec, TensorBuffers buffers,
                                  const SubmissionPlace& place, absl::Time deadline, Clock& clock,
                                  std::shared_ptr<DriverSeat> seat) {
  COORDD_RETURN_IF_ERROR(CheckMemory(*spec, buffers));
  COORDD_RETURN_IF_ERROR(CheckSplits(*spec, SizeOf(place), buffers.splits));
  COORDD_RETURN_IF_ERROR(CheckBuffers(*spec, buffers, place.rank));
  TensorJob job;
  job.input = static_cast<const std::byte*>(buffers.input);
  job.output = static_cast<std::byte*>(buffers.output);
  job.output_capacity_bytes = buffers.output_capacity_bytes;
  job.splits = std::move(buffers.splits);
  job.device = buffers.device;
  job.stream = buffers.stream;
  job.deadline = deadline;
  // What is on a device has a longer way than the data plane, which its waiter cannot drive.
  if (job.device >= 0) seat = nullptr;
  job.work = std::make_shared<Work>(std::move(spec), clock, std::move(seat));
  return job;
}

absl::StatusOr<TensorJob> CheckSubmission(Submission submission, const SubmissionPlace& place,
                                          absl::Time deadline, Clock& clock,
                                          std::shared_ptr<DriverSeat> seat) {
  COORDD_RETURN_IF_ERROR(CheckSpec(submission.spec, place));
  TensorBuffers& buffers = submission;
  return MakeJob(std::move(submission.spec), std::move(buffers), place, deadline, clock,
                 std::move(seat));
}

absl::Status CheckSetName(const std::string& name) {
  if (name.empty() || static_cast<int64_t>(name.size()) > kMaxProcessSetNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a process set whose name has ", name.size(),
                                                   " bytes, expected 1 to ",
                                                   kMaxProcessSetNameBytes));
  }
  if (!IsUtf8(name)) return absl::InvalidArgumentError("a process set whose name is no UTF-8 text");
  return absl::OkStatus();
}

absl::Status CheckNewSet(const std::string& name, const std::vector<int32_t>& ranks,
                         const Placement& placement) {
  const std::string list = absl::StrJoin(ranks, ", ");
  const bool valid = !ranks.empty() && ranks.front() >= 0 && ranks.back() < placement.size &&
                     std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end();
  if (!valid) {
    return absl::InvalidArgumentError(absl::StrCat("a process set of ranks [", list,
                                                   "], expected different ranks of 0 to ",
                                                   placement.size - 1));
  }
  if (name.empty() || std::binary_search(ranks.begin(), ranks.end(), placement.rank))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("process set ", name, " of ranks [", list, "]: rank ", placement.rank,
                   " asks for it, expected one of these: its members alone make it"));
}

}  // namespace coordd
