#include "client/coordctl/target_by_job.h"

#include <algorithm>

#include "absl/status/status.h"
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

}  // namespace

absl::StatusOr<Target> ChooseByJob(const std::string& job,
                                   absl::Span<const RunningCoordinator> running) {
  const RunningCoordinator* found = nullptr;
  int count = 0;
  for (const RunningCoordinator& one : running) {
    if (std::find(one.jobs.begin(), one.jobs.end(), job) == one.jobs.end()) continue;
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

}  // namespace coordd
