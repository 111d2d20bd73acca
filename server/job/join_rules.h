// What a job's first worker makes of it, and what a later one has to agree with. PURE
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordd/v1/records.pb.h"
#include "coordd/v1/session.pb.h"
#include "server/job/job_view.h"
#include "server/job/reforming.h"
#include "server/job/rendezvous_state.h"
#include "server/model/server_options.h"

namespace coordd {

// Of the job that this worker begins. FAILED_PRECONDITION: nobody could form it.
absl::StatusOr<RendezvousOptions> LimitsOf(const v1::Join& join, const std::string& job,
                                           const ServerOptions& options);
// Of a job that is known from before.
RendezvousOptions LimitsOf(const v1::JobRecord& record, const ServerOptions& options);
ReformingOptions ReformingOf(OnFailure on_failure, const ServerOptions& options);

// What refuses the worker, in one sentence; UNAVAILABLE if that may be the doing of one that is
// dead and whose end is not noticed yet. `token`: what the job says of the worker's.
absl::Status MayJoin(const v1::Join& join, const JobView& job, const absl::Status& token,
                     absl::Time now);
// FAILED_PRECONDITION: the generation that the job has had was its last one.
absl::Status NobodyIsTaken(const JobView& job);

// FAILED_PRECONDITION: what its generation does instead, as in "is over".
absl::Status CannotResume(const v1::Join& join, absl::string_view job, absl::string_view instead);

}  // namespace coordd
