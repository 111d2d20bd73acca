// Which of several coordds on a machine is meant, by the jobs that they have. PURE
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/coordctl/target.h"
#include "common/launch/connection_file.h"
#include "coordd/v1/admin.pb.h"

namespace coordd {

struct RunningCoordinator {
  Connection connection;
  bool answers = false;
  std::vector<std::string> jobs;  // of one that answers
};

// The only one that has `job`. FAILED_PRECONDITION: `job` is empty, or none or several have it;
// says which job each of them has.
absl::StatusOr<Target> ChooseByJob(const std::string& job,
                                   absl::Span<const RunningCoordinator> running);

// The job of this name; where there is none, the group of its workers that runs, which is called
// after it: one of torch.distributed.
std::string JobOrItsGroup(const v1::ServerState& state, const std::string& job);

}  // namespace coordd
