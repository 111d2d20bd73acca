#include "client/coordrun/program/coordinator_keeper.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/coordctl/admin_client.h"
#include "client/coordrun/coordinator/run_target.h"
#include "client/coordrun/plan/coordinator_view.h"
#include "client/coordrun/process/read_lines.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

// For a coordd that is named to say how it wants to be spoken to.
constexpr absl::Duration kFirstLookTimeout = absl::Seconds(3);

}  // namespace

absl::Status CoordinatorKeeper::SetUp(const RunPlan& plan, const std::string& directory) {
  COORDD_ASSIGN_OR_RETURN(coordinator_,
                          SetUpCoordinator(options_, plan, directory, environment_, clock_));
  return absl::OkStatus();
}

absl::Status CoordinatorKeeper::CheckSpeaks() const {
  if (options_.coordinator.empty()) return absl::OkStatus();
  COORDD_RETURN_IF_ERROR(CheckNamed(rendezvous(), clock_));
  const auto state = FetchState(TargetOf(rendezvous()), rendezvous().job, kFirstLookTimeout);
  const absl::Status& status = state.status();
  const bool is_final = absl::IsFailedPrecondition(status) || absl::IsUnauthenticated(status);
  return is_final ? status : absl::OkStatus();
}

absl::Status CoordinatorKeeper::CheckIsThere() const {
  if (!options_.pods.take_part() || is_own()) return absl::OkStatus();
  const absl::Status found =
      FetchState(TargetOf(rendezvous()), rendezvous().job, kFirstLookTimeout).status();
  const bool is_away = absl::IsUnavailable(found) || absl::IsDeadlineExceeded(found);
  return is_away ? found : absl::OkStatus();
}

std::optional<v1::ServerState> CoordinatorKeeper::FetchView(
    const std::vector<std::string>& launches, absl::Duration timeout) const {
  if (rendezvous().address.empty() || has_ended()) return std::nullopt;
  auto state = FetchState(TargetOf(rendezvous()), rendezvous().job, timeout);
  if (!state.ok()) return std::nullopt;
  JoinGroups(rendezvous().job, launches, &*state);
  return *std::move(state);
}

// poll skips negative descriptors.
void CoordinatorKeeper::Await(std::vector<pollfd>& fds) {
  const auto add = [&fds](int fd) { fds.push_back({.fd = fd, .events = POLLIN, .revents = 0}); };
  ChildProcess* const coordd = is_own() ? &coordinator_.process->process : nullptr;
  add(coordd != nullptr && !coordd->reaped() ? coordd->pidfd() : -1);
  add(coordd != nullptr ? coordd->out().get() : -1);
  add(coordd != nullptr ? coordd->err().get() : -1);
}

std::optional<ProcessEnd> CoordinatorKeeper::Handle(absl::Span<const pollfd> fds, bool needed) {
  if (fds[1].revents != 0 || fds[2].revents != 0) Read();
  if (fds[0].revents == 0) return std::nullopt;
  const std::optional<ProcessEnd> end = coordinator_.process->process.Reap();
  if (!end || released_ || !needed || Restart(*end)) return std::nullopt;
  return end;
}

void CoordinatorKeeper::Signal(int signal) { coordinator_.process->process.Signal(signal); }

void CoordinatorKeeper::Read() {
  ChildProcess& process = coordinator_.process->process;
  // Its stdout says that it is ready, which the run shows anyway.
  if (process.out_open()) ReadLines(process.out(), out_, [](absl::string_view) {});
  if (process.err_open()) {
    ReadLines(process.err(), err_, [&](absl::string_view line) {
      if (options_.verbose || !TellsOfOurs(line)) output_.CoordinatorLine(line);
    });
  }
}

// How workers of this run end is told here anyway, and in the summary.
bool CoordinatorKeeper::TellsOfOurs(absl::string_view line) const {
  // Of several at once it names no process. Of those whose processes are all known here, it has no
  // others.
  const bool of_several =
      absl::StrContains(line, " workers on ") &&
      (absl::StrContains(line, ": lost ") || absl::StrContains(line, ": each "));
  if (of_several) return std::find(pids_.begin(), pids_.end(), 0) == pids_.end();
  constexpr absl::string_view kEnds[] = {"), which has departed: ", ") failed: ", ") was lost: "};
  for (const absl::string_view end : kEnds) {
    const size_t at = line.find(end);
    if (at == absl::string_view::npos) continue;
    const absl::string_view who = line.substr(0, at);
    for (const pid_t pid : pids_)
      if (pid != 0 && absl::EndsWith(who, absl::StrCat("pid ", pid))) return true;
  }
  return false;
}

// The workers keep what they have and come back to it.
bool CoordinatorKeeper::Restart(const ProcessEnd& end) {
  if (coordinator_.setup.store == "memory") return false;
  const absl::Time died = clock_.Now();
  deaths_.Died(died);
  if (deaths_.too_many()) {
    output_.Say(absl::StrCat("coordrun: coordd ", end.ToString(), ", ", deaths_.count(),
                             " times as soon as it had been started: it is not started again"));
    return false;
  }
  Read();  // its last words
  absl::Status started;
  do {
    // It may die before it listens, too.
    started = RestartCoordinator(options_, environment_, clock_, &coordinator_);
    if (absl::IsUnavailable(started)) deaths_.DiedAtOnce();
  } while (absl::IsUnavailable(started) && !deaths_.too_many());
  const absl::Time now = clock_.Now();
  deaths_.Started(now);
  if (!started.ok()) {
    output_.Say(absl::StrCat("coordrun: coordd ", end.ToString(),
                             "; it is not started again: ", started.message()));
    return false;
  }
  output_.Say(absl::StrCat("coordrun: coordd ", end.ToString(), " and was started again after ",
                           absl::ToInt64Milliseconds(now - died), " ms"));
  return true;
}

}  // namespace coordd
