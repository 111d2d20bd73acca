#include "worker/submission_check.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/worker_errors.h"

namespace coordd {
namespace {

absl::Status Invalid(const TensorSpec& spec, absl::string_view found, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", spec.name, ": ", found, ", expected ", expected));
}

// What this version carries out; the rest has its place in the protocol.
absl::Status CheckSupported(const Submission& submission) {
  const TensorSpec& spec = submission.spec;
  if (ToInt(spec.process_set) != 0) {
    return absl::UnimplementedError(absl::StrCat("tensor ", spec.name, ": process set ",
                                                 ToInt(spec.process_set),
                                                 ", expected 0: this version has only the set of "
                                                 "all ranks"));
  }
  if (spec.memory != MemoryKind::kHost || submission.device >= 0) {
    return absl::UnimplementedError(
        absl::StrCat("tensor ", spec.name,
                     ": device memory, expected host memory: this version "
                     "has no backend for devices"));
  }
  return absl::OkStatus();
}

absl::Status CheckSplits(Submission& submission, int32_t world_size) {
  const TensorSpec& spec = submission.spec;
  if (spec.kind != CollectiveKind::kAlltoall) {
    if (submission.splits.empty()) return absl::OkStatus();
    return Invalid(spec, absl::StrCat(Name(spec.kind), " with splits"), "none");
  }
  const int64_t rows = spec.shape[0];
  if (submission.splits.empty()) {
    if (rows % world_size != 0)
      return Invalid(spec, absl::StrCat("alltoall of ", rows, " rows without splits"),
                     absl::StrCat("a multiple of ", world_size, " ranks"));
    submission.splits.assign(static_cast<size_t>(world_size), rows / world_size);
    return absl::OkStatus();
  }
  int64_t sum = 0;
  bool valid = static_cast<int32_t>(submission.splits.size()) == world_size;
  for (int64_t split : submission.splits) {
    // Each is bounded by the rows, so that the sum cannot overflow.
    valid = valid && split >= 0 && split <= rows - sum;
    if (valid) sum += split;
  }
  if (!valid || sum != rows)
    return Invalid(spec, absl::StrCat("splits [", absl::StrJoin(submission.splits, ", "), "]"),
                   absl::StrCat(world_size, " numbers that add up to ", rows, " rows"));
  return absl::OkStatus();
}

absl::Status CheckBuffers(const Submission& submission) {
  const TensorSpec& spec = submission.spec;
  if (spec.kind == CollectiveKind::kBarrier) return absl::OkStatus();
  const bool empty = SizeBytes(spec) == 0;
  const bool may_allocate = spec.kind == CollectiveKind::kAllgather ||
                            spec.kind == CollectiveKind::kReducescatter ||
                            spec.kind == CollectiveKind::kAlltoall;
  // A broadcast reads the root's input only.
  if (submission.input == nullptr && !empty && spec.kind != CollectiveKind::kBroadcast)
    return Invalid(spec, "no input", absl::StrCat(SizeBytes(spec), " bytes"));
  if (submission.output == nullptr && !empty && !may_allocate)
    return Invalid(spec, absl::StrCat(Name(spec.kind), " without an output"),
                   absl::StrCat(SizeBytes(spec), " bytes"));
  if (submission.output_capacity_bytes < 0)
    return Invalid(spec, absl::StrCat("an output of ", submission.output_capacity_bytes, " bytes"),
                   "at least 0");
  const bool in_place = submission.output != nullptr && submission.output == submission.input;
  if (in_place && !empty &&
      (spec.kind == CollectiveKind::kAlltoall || spec.kind == CollectiveKind::kReducescatter))
    return Invalid(spec, absl::StrCat(Name(spec.kind), " in place"), "an output of its own");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TensorJob> CheckSubmission(Submission submission, int32_t world_size,
                                          absl::Time deadline, Clock& clock) {
  if (!IsUtf8(submission.spec.name) || !IsUtf8(submission.spec.group)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", ShortenedText(submission.spec.name, kMaxTensorNameBytes),
                     ": a name that is not UTF-8, expected UTF-8"));
  }
  COORDD_RETURN_IF_ERROR(Validate(submission.spec, world_size));
  COORDD_RETURN_IF_ERROR(CheckSupported(submission));
  COORDD_RETURN_IF_ERROR(CheckSplits(submission, world_size));
  COORDD_RETURN_IF_ERROR(CheckBuffers(submission));
  TensorJob job;
  job.input = static_cast<const std::byte*>(submission.input);
  job.output = static_cast<std::byte*>(submission.output);
  job.output_capacity_bytes = submission.output_capacity_bytes;
  job.splits = std::move(submission.splits);
  job.deadline = deadline;
  job.work = std::make_shared<Work>(std::move(submission.spec), clock);
  return job;
}

}  // namespace coordd
