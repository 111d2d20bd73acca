// What a caller submits, checked on the caller's thread and made ready to travel.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "worker/api/worker.h"
#include "worker/execute/process_set_table.h"
#include "worker/execute/tensor_job.h"

namespace coordd {

// Where the caller's rank is in the set that it submits to.
struct SubmissionPlace {
  int32_t rank = 0;  // in the job
  int32_t world_size = 1;
  RankList set;  // of the process set; nullptr: all ranks
};

// What does not change from one submission to the next. INVALID_ARGUMENT, as MakeJob: names the
// tensor, what was found and what was expected.
absl::Status CheckSpec(const TensorSpec& spec, const SubmissionPlace& place);
// Fills in the splits of an alltoall that gives none. `seat`: the Work's. REQUIRES: the spec is
// good.
absl::StatusOr<TensorJob> MakeJob(SharedSpec spec, TensorBuffers buffers,
                                  const SubmissionPlace& place, absl::Time deadline, Clock& clock,
                                  std::shared_ptr<DriverSeat> seat = nullptr);
// Both.
absl::StatusOr<TensorJob> CheckSubmission(Submission submission, const SubmissionPlace& place,
                                          absl::Time deadline, Clock& clock,
                                          std::shared_ptr<DriverSeat> seat = nullptr);

// What a caller says of a process set that is to be made. INVALID_ARGUMENT.
absl::Status CheckSetName(const std::string& name);
// `ranks`: sorted. With a name this rank has to be among them.
absl::Status CheckNewSet(const std::string& name, const std::vector<int32_t>& ranks,
                         const Placement& placement);

}  // namespace coordd
