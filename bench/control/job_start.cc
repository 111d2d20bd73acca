#include "bench/control/job_start.h"

#include <algorithm>
#include <memory>

#include "bench/control/echo_crowd.h"
#include "bench/control/server_process.h"
#include "bench/control/simulated_job.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace coordd::bench {
namespace {

// Until all report when coordd has asked them to.
constexpr absl::Duration kSettling = absl::Seconds(10);

double PerSession(int64_t before, int64_t after, int32_t sessions) {
  return static_cast<double>(after - before) / sessions;
}

absl::StatusOr<double> BareBytesPerSession(int32_t sessions, int32_t channels) {
  COORDD_ASSIGN_OR_RETURN(const std::unique_ptr<EchoCrowd> echo,
                          EchoCrowd::Start(sessions, channels));
  const int64_t before = echo->server().ResidentBytes();
  COORDD_RETURN_IF_ERROR(echo->Open().status());
  return PerSession(before, echo->server().ResidentBytes(), sessions);
}

}  // namespace

absl::StatusOr<nlohmann::json> MeasureRendezvous(const StartOptions& options) {
  // Joining may take longer than a lease when thousands share two cores with coordd.
  COORDD_ASSIGN_OR_RETURN(const auto coordd,
                          ServerProcess::StartCoordd({"--lease", "10m"}, options.tls));
  SimulatedJob job({.coordd = coordd->address(),
                    .shape = options.shape,
                    .channels = options.channels,
                    .tls = options.tls});
  const absl::Duration cpu_before = coordd->CpuTime();
  const int64_t bytes_before = coordd->ResidentBytes();
  COORDD_ASSIGN_OR_RETURN(const SimulatedJob::Joined joined, job.Join());
  COORDD_ASSIGN_OR_RETURN(const absl::Duration groups, job.MakeGroups(options.groups));
  return nlohmann::json{
      {"groups_per_rank", options.groups},
      {"seconds_of_groups", absl::ToDoubleSeconds(groups)},
      {"ranks", options.shape.ranks()},
      {"nodes", options.shape.nodes},
      {"sessions", options.shape.sessions()},
      {"channels", options.channels},
      {"seconds_after_last_join", absl::ToDoubleSeconds(joined.after_last_join)},
      {"seconds_after_first_join", absl::ToDoubleSeconds(joined.in_all)},
      {"calls_per_rank", joined.calls_per_rank},
      {"messages_per_rank",
       static_cast<double>(job.messages_sent() + job.messages_received()) / options.shape.ranks()},
      {"coordd_cpu_seconds", absl::ToDoubleSeconds(coordd->CpuTime() - cpu_before)},
      {"rss_bytes_per_session",
       PerSession(bytes_before, coordd->ResidentBytes(), options.shape.ranks())}};
}

absl::StatusOr<nlohmann::json> MeasureIdle(const StartOptions& options) {
  const int32_t ranks = options.shape.ranks();
  COORDD_ASSIGN_OR_RETURN(const double bare,
                          BareBytesPerSession(options.shape.sessions(), options.channels));
  // With the default lease, which says how often members report.
  COORDD_ASSIGN_OR_RETURN(const auto coordd, ServerProcess::StartCoordd({}));
  const int64_t bytes_before = coordd->ResidentBytes();
  SimulatedJob job(
      {.coordd = coordd->address(), .shape = options.shape, .channels = options.channels});
  COORDD_RETURN_IF_ERROR(job.Join().status());
  COORDD_RETURN_IF_ERROR(job.Beat(kSettling));
  const absl::Duration cpu_before = coordd->CpuTime();
  const int64_t sent = job.messages_sent();
  const absl::Time start = Clock::Real().Now();
  COORDD_RETURN_IF_ERROR(job.Beat(options.idle));
  const absl::Duration watched = Clock::Real().Now() - start;
  return nlohmann::json{
      {"ranks", ranks},
      {"sessions", options.shape.sessions()},
      {"channels", options.channels},
      {"seconds", absl::ToDoubleSeconds(watched)},
      {"coordd_cpu_percent_of_a_core",
       100 * absl::FDivDuration(coordd->CpuTime() - cpu_before, watched)},
      {"heartbeats_per_second",
       static_cast<double>(job.messages_sent() - sent) / absl::ToDoubleSeconds(watched)},
      {"rss_bytes_per_session", PerSession(bytes_before, coordd->ResidentBytes(), ranks)},
      {"bare_rss_bytes_per_session", bare}};
}

}  // namespace coordd::bench
