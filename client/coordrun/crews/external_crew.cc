#include "client/coordrun/crews/external_crew.h"

#include <signal.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/coordctl/admin_client.h"
#include "client/coordrun/coordinator/run_target.h"
#include "client/coordrun/plan/commands.h"

namespace coordd {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(1);
constexpr absl::Duration kLookTimeout = absl::Milliseconds(500);

}  // namespace

std::string ExternalInstructions(const RunOptions& options, int32_t np,
                                 const Environment& variables) {
  std::string text = absl::StrCat("# start this ", np, np == 1 ? " time" : " times",
                                  ", where the files of COORDD_TOKEN_FILE and COORDD_TLS_* can be "
                                  "read (copy them with mode 0600); "
                                  "COORDD_RANK=0 to ",
                                  np - 1, " may be set, as a hint\nenv");
  for (const auto& [name, value] : variables) {
    if (!value.empty()) absl::StrAppend(&text, " ", name, "=", Quoted(value));
  }
  return absl::StrCat(text, " ", Quoted(options.command));
}

ExternalCrew::ExternalCrew(const RunOptions& options, const RunPlan& plan, Rendezvous rendezvous,
                           Environment variables)
    : options_(options),
      plan_(plan),
      rendezvous_(std::move(rendezvous)),
      variables_(std::move(variables)) {}

absl::Status ExternalCrew::Start(CrewEvents& events) {
  events.Notice(ExternalInstructions(options_, plan_.np, variables_));
  events.Notice(absl::StrCat("coordrun: waiting for ", plan_.np,
                             plan_.np == 1 ? " worker at " : " workers at ", rendezvous_.address,
                             "; Ctrl-C ends coordd"));
  for (int32_t worker = 0; worker < plan_.np; ++worker) events.WorkerStarted(worker, "", 0, "");
  return absl::OkStatus();
}

void ExternalCrew::Signal(int signal, absl::Time now) {
  given_up_ = given_up_ || signal == SIGKILL || signal == SIGTERM || signal == SIGINT;
  if (given_up_) next_look_ = now;
}

void ExternalCrew::EndAll(const ProcessEnd& end, CrewEvents& events) {
  if (std::exchange(ended_, true)) return;
  for (int32_t worker = 0; worker < plan_.np; ++worker) events.WorkerEnded(worker, end);
}

void ExternalCrew::Take(const v1::JobState& job, CrewEvents& events) {
  if (!seen_ && job.phase() == v1::JOB_PHASE_RUNNING) {
    seen_ = true;
    events.Notice(absl::StrCat("coordrun: ", job.size(),
                               job.size() == 1 ? " worker has" : " workers have",
                               " joined; the job runs"));
  }
  if (job.phase() != v1::JOB_PHASE_ENDED) return;
  bool good = true;
  for (const v1::Departure& departure : job.departures()) {
    good = good && departure.cause() == v1::DEPARTURE_CAUSE_LEFT;
  }
  EndAll({.code = good ? 0 : 1, .signal = 0}, events);
}

void ExternalCrew::Handle(absl::Span<const pollfd> /*fds*/, absl::Time now, CrewEvents& events) {
  if (ended_ || now < next_look_) return;
  if (given_up_) return EndAll({.code = 1, .signal = 0}, events);
  next_look_ = now + kLookEvery;
  const auto state = FetchState(TargetOf(rendezvous_), rendezvous_.job, kLookTimeout);
  if (!state.ok()) return;
  for (const v1::JobState& job : state->jobs()) {
    if (job.name() == rendezvous_.job) Take(job, events);
  }
}

}  // namespace coordd
