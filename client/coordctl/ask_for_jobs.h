// Asks each of several coordds for its jobs. (io)
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "client/coordctl/target_by_job.h"
#include "common/launch/connection_file.h"

namespace coordd {

// Asks one after the other: blocks up to 2 s for each that does not answer.
std::vector<RunningCoordinator> AskForJobs(absl::Span<const Connection> live);

}  // namespace coordd
