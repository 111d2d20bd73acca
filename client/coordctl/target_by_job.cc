#include "client/coordctl/target_by_job.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace coordd {
namespace {

std::string CoordinatorJobsText(const RunningCoordinator& one) {
  constexpr size_t kShown = 4;
  const size_t more = one.jobs.size() - std::min(one.jobs.size(), kShown);
  const std::string jobs = absl::StrJoin(absl::MakeConstSpan(one.jobs).subspan(0, kShown), ", ");
  return absl::StrCat(one.connection.listen, " (pid ", one.connection.pid, ", ",
                      !one.answers           ? "which does not answer"
                      : one.jobs.empty()     ? "no job"
                      : one.jobs.size() == 1 ? absl::StrCat("job ", jobs)
                      : more == 0            ? absl::StrCat("jobs ", jobs)
                                             : absl::StrCat("jobs ", jobs, " and ", more, " more"),
                      ")");
}

// Whether it has the job, or a group of its workers, whose job is called after it.
bool HasJob(const RunningCoordinator& one, const std::string& job) {
  return std::any_of(one.jobs.begin(), one.jobs.end(), [&](const std::string& name) {
    return name == job || absl::StartsWith(name, absl::StrCat(job, "."));
  });
}

}  // namespace

absl::StatusOr<Target> ChooseByJob(const std::string& job,
                                   absl::Span<const RunningCoordinator> running) {
  const RunningCoordinator* found = nullptr;
  int count = 0;
  for (const RunningCoordinator& one : running) {
    if (job.empty() || !HasJob(one, job)) continue;
    found = &one;
    ++count;
  }
  if (!job.empty() && count == 1)
    return Target{found->connection.listen, found->connection.tls, absl::ZeroDuration()};
  const std::string all = absl::StrJoin(running, ", ", [](std::string* out, const auto& one) {
    absl::StrAppend(out, CoordinatorJobsText(one));
  });
  return absl::FailedPreconditionError(
      absl::StrCat(running.size(), " coordds of yours run on this machine: ", all,
                   job.empty()  ? "; name the job, or one of them with --coordinator HOST:PORT"
                   : count == 0 ? absl::StrCat("; none has a job ", job)
                                : absl::StrCat("; ", count, " have a job ", job,
                                               ": name one with --coordinator HOST:PORT")));
}

std::string JobOrItsGroup(const v1::ServerState& state, const std::string& job) {
  std::string found = job;
  for (const v1::JobState& one : state.jobs()) {
    if (one.name() == job) return job;
    if (one.phase() == v1::JOB_PHASE_RUNNING) found = one.name();
  }
  return found;
}

}  // namespace coordd
