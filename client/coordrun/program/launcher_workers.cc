// What a run does about workers that end and hosts that come and go.
#include <signal.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/coordctl/admin_client.h"
#include "client/coordrun/coordinator/run_target.h"
#include "client/coordrun/process/last_words.h"
#include "client/coordrun/program/launcher.h"
#include "common/base/log.h"
#include "common/base/token_file.h"
#include "common/launch/host_identity.h"

namespace coordd {
namespace {

// The loop stands still meanwhile.
constexpr absl::Duration kJudgeTimeout = absl::Milliseconds(500);
// From the moment when coordd has evicted a worker to SIGTERM.
constexpr absl::Duration kAfterEviction = absl::Seconds(1);
// Before the end of a process: what it says then may be of that.
constexpr absl::Duration kSaidOfItsEnd = absl::Seconds(10);

}  // namespace

void Launcher::WorkerStarted(int32_t worker, const std::string& host, pid_t pid,
                             const std::string& launch) {
  const auto index = static_cast<size_t>(worker);
  report_.pids[index] = pid;
  report_.hosts[index] = host;
  launches_[index] = launch;
  tails_[index] = TailLines(kTailLines);  // what it says in this life
}

void Launcher::WorkerSaid(int32_t worker, Stream stream, const OutputPiece& piece) {
  if (stream == Stream::kErr) tails_[static_cast<size_t>(worker)].Add(piece, clock_.Now());
  output_.WorkerSaid(worker, stream, piece);
}

void Launcher::WorkerEnded(int32_t worker, const ProcessEnd& end) {
  ReportExit(worker, end);
  const auto index = static_cast<size_t>(worker);
  const bool elastic = options_.min_np > 0 || hosts_.change();
  // What coordd makes of it is asked for all that end in one turn.
  if (elastic && !state_->ending() && !launches_[index].empty()) {
    ended_.emplace_back(worker, end);
  } else {
    TellEnd(worker, end, /*drained=*/false);
  }
}

void Launcher::StartReporter() {
  const Rendezvous& rendezvous = keeper_.rendezvous();
  if (rendezvous.launch_id.empty()) return;
  std::string token;
  if (!rendezvous.token_file.empty()) {
    absl::StatusOr<std::string> read = ReadTokenFile("coordrun", rendezvous.token_file);
    if (!read.ok()) {  // it was there when the run began
      COORDD_LOG(kWarning, "coordd is not told how workers end: ", read.status().message());
      return;
    }
    token = *std::move(read);
  }
  auto reporter =
      ExitReporter::Start({.address = rendezvous.address, .tls = rendezvous.launcher_tls},
                          rendezvous.job, std::move(token));
  if (reporter.ok()) reporter_ = *std::move(reporter);
}

// What it wrote earlier says nothing of its end: a framework's words from its start, perhaps.
std::deque<std::string> Launcher::LastSaid(int32_t worker) const {
  return tails_[static_cast<size_t>(worker)].Since(clock_.Now() - kSaidOfItsEnd);
}

void Launcher::ReportExit(int32_t worker, const ProcessEnd& end) {
  const auto index = static_cast<size_t>(worker);
  if (reporter_ == nullptr || launches_[index].empty()) return;
  v1::LaunchedExit exit;
  exit.set_launch(launches_[index]);
  exit.set_hostname(report_.hosts[index].empty() ? ThisHost("").hostname : report_.hosts[index]);
  exit.set_pid(report_.pids[index]);
  exit.set_rank(options_.first_rank + worker);
  const bool ours = end.signal == SIGTERM || end.signal == SIGKILL;
  const char* reason = !ours                           ? ""
                       : state_->workers()[index].away ? "its host is gone"
                       : state_->ending()              ? "coordrun was ending the run"
                                                       : "";
  *exit.mutable_exit() = ToProto(end, LastSaid(worker), reason);
  reporter_->Report(std::move(exit));
}

// coordd is asked once for all that have ended, which it knows of before they end.
void Launcher::JudgeEnds() {
  if (ended_.empty()) return;
  const auto ended = std::exchange(ended_, {});
  const auto view = keeper_.FetchView(launches_, kJudgeTimeout);
  for (const auto& [worker, end] : ended) {
    const auto index = static_cast<size_t>(worker);
    const bool asked = view && !state_->workers()[index].away &&
                       WasAskedToLeave(*view, report_.job, launches_[index]);
    TellEnd(worker, end, asked);
  }
  JobIsOver(view);
}

bool Launcher::JobIsOver(const std::optional<v1::ServerState>& view) {
  if (view && !state_->ending())
    state_->JobEnded(NoneFollows(*view, report_.job, launches_), clock_.Now());
  return !state_->job_end().empty();
}

void Launcher::TellEnd(int32_t worker, const ProcessEnd& end, bool drained) {
  const absl::Time now = clock_.Now();
  if (drained && !state_->ending()) {
    state_->DrainedWorkerEnded(worker, end, now);
    if (hosts_.change()) hosts_.slots().Drained(worker);
    output_.Say(absl::StrCat("coordrun: ", DrainText(options_, *state_, report_, worker)));
    return;
  }
  const size_t lost = state_->lost().size();
  state_->WorkerEnded(worker, end, now);
  if (state_->lost().size() > lost)
    output_.Say(
        absl::StrCat("coordrun: ", LossText(options_, *state_, report_, worker, LastSaid(worker))));
  if (end.ok() && (keeper_.is_own() || options_.max_restarts > 0)) early_look_.Ended(now);
}

std::set<int32_t> Launcher::Drain(const std::vector<int32_t>& workers) {
  std::set<int32_t> leave;
  const Rendezvous& rendezvous = keeper_.rendezvous();
  v1::DismissRequest request;
  request.set_job(rendezvous.job);
  request.set_action(v1::DISMISS_ACTION_DRAIN);
  request.set_grace_seconds(absl::ToDoubleSeconds(options_.drain_grace));
  request.set_force(true);  // their host is gone anyway
  request.set_asked_by("coordrun (its host is gone)");
  for (const int32_t worker : workers) {
    const std::string& launch = launches_[static_cast<size_t>(worker)];
    if (!launch.empty()) request.add_launches(launch);
  }
  if (request.launches().empty() || rendezvous.address.empty()) return leave;
  const auto reply = DismissWorkers(TargetOf(rendezvous), request, kJudgeTimeout);
  if (absl::IsFailedPrecondition(reply.status()) || absl::IsPermissionDenied(reply.status())) {
    // They may still come to an end by themselves, or do what they do on SIGTERM.
    output_.Say(absl::StrCat("coordrun: workers of hosts that are gone cannot be asked to leave: ",
                             reply.status().message(), "; they get SIGTERM after --drain-grace ",
                             absl::FormatDuration(options_.drain_grace)));
    return {workers.begin(), workers.end()};
  }
  if (!reply.ok()) return leave;  // SIGTERM tells them, too
  for (const v1::DismissedWorker& dismissed : reply->workers()) {
    for (const int32_t worker : workers) {
      const bool is_member = dismissed.rank() >= 0;
      if (is_member && dismissed.launch() == launches_[static_cast<size_t>(worker)])
        leave.insert(worker);
    }
  }
  return leave;
}

void Launcher::RestartWorkers() {
  const std::vector<int32_t> due = state_->TakeRestarts(clock_.Now());
  if (!due.empty() && JobIsOver(keeper_.FetchView(launches_, kJudgeTimeout))) return;
  for (const int32_t worker : due) {
    const auto index = static_cast<size_t>(worker);
    report_.pids[index] = 0;  // elsewhere it is told later
    const absl::Status started = crew_->Restart(worker, *this);
    if (started.ok()) {
      state_->WorkerRestarted(worker, clock_.Now());
    } else {
      state_->RestartFailed(worker, clock_.Now());
    }
    const std::string host = report_.hosts[index];
    const std::string where =
        host.empty() ? absl::StrCat("pid ", report_.pids[index]) : absl::StrCat("host ", host);
    const RunState::Worker& course = state_->workers()[index];
    const char* again = course.late && course.restarts == 1 ? "" : " again";
    const std::string who = absl::StrCat(!hosts_.change() ? "coordrun: rank " : "coordrun: slot ",
                                         options_.first_rank + worker);
    output_.Say(started.ok() ? absl::StrCat(who, " is started", again, " (", where, ")")
                             : absl::StrCat(who, " is not started again: ", started.message()));
  }
}

// Nobody is in them, or only somebody who was asked to leave, of which coordd is asked where it
// matters.
std::set<int32_t> Launcher::EmptySlots(const std::vector<HostSlots>& hosts) const {
  std::set<int32_t> empty;
  for (size_t i = 0; i < state_->workers().size(); ++i)
    if (state_->workers()[i].end) empty.insert(static_cast<int32_t>(i));
  if (SlotBook(hosts_.slots()).Update(hosts, empty).end.empty()) return empty;
  const auto view = keeper_.FetchView(launches_, kJudgeTimeout);
  for (size_t i = 0; view && i < launches_.size(); ++i) {
    if (!launches_[i].empty() && WasAskedToLeave(*view, report_.job, launches_[i]))
      empty.insert(static_cast<int32_t>(i));
  }
  return empty;
}

void Launcher::TakeHosts(const absl::StatusOr<std::vector<HostSlots>>& hosts) {
  const HostAnswers::Verdict verdict = hosts_.Judge(hosts, clock_.Now());
  if (!verdict.say.empty()) output_.Say(absl::StrCat("coordrun: ", verdict.say));
  if (!verdict.take || state_->ending()) return;
  const SlotChange change = hosts_.slots().Update(*hosts, EmptySlots(*hosts));
  for (const std::string& sentence :
       SlotSentences(change, hosts_.slots().slots(), *hosts, report_.pids))
    output_.Say(absl::StrCat("coordrun: ", sentence));
  const absl::Time now = clock_.Now();
  while (state_->workers().size() < hosts_.slots().slots().size()) {
    const auto worker = static_cast<int32_t>(state_->workers().size());
    state_->AddSlot(now);
    report_.pids.push_back(0);
    report_.hosts.push_back(hosts_.slots().slots()[static_cast<size_t>(worker)].host);
    tails_.emplace_back(kTailLines);
    launches_.emplace_back();
    if (const absl::Status opened = output_.OpenFilesOf(worker); !opened.ok())
      output_.Say(absl::StrCat("coordrun: ", opened.message()));
  }
  const std::set<int32_t> leave = Drain(change.end);
  for (const int32_t worker : change.end) {
    // coordd evicts who has not left; that one has to end, too.
    const bool leaves = leave.count(worker) > 0;
    state_->SlotWent(worker, now,
                     leaves ? options_.drain_grace + kAfterEviction : absl::ZeroDuration());
    crew_->Release(worker);
  }
  for (const int32_t worker : change.start) state_->SlotCame(worker, now);
}

}  // namespace coordd
