#include "client/coordctl/ask_for_jobs.h"

#include "absl/time/time.h"
#include "client/coordctl/admin_client.h"

namespace coordd {

std::vector<RunningCoordinator> AskForJobs(absl::Span<const Connection> live) {
  constexpr absl::Duration kLookTimeout = absl::Seconds(2);
  std::vector<RunningCoordinator> running;
  for (const Connection& connection : live) {
    const auto state = FetchState({connection.listen, connection.tls}, "", kLookTimeout);
    RunningCoordinator& one = running.emplace_back(RunningCoordinator{connection, state.ok(), {}});
    if (!state.ok()) continue;
    for (const v1::JobState& job : state->jobs()) one.jobs.push_back(job.name());
  }
  return running;
}

}  // namespace coordd
