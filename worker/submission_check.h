// What a caller submits, checked on the caller's thread and made ready to travel.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/tensor_job.h"
#include "worker/worker.h"

namespace coordd {

// INVALID_ARGUMENT: names the tensor, what was found and what was expected. Fills in the splits of
// an alltoall that gives none. UNIMPLEMENTED: process sets and device memory, by name.
absl::StatusOr<TensorJob> CheckSubmission(Submission submission, int32_t world_size,
                                          absl::Time deadline, Clock& clock);

}  // namespace coordd
