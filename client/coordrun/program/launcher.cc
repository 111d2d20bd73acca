#include "client/coordrun/program/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/coordrun/checks/preflight.h"
#include "client/coordrun/checks/torch_traps.h"
#include "client/coordrun/crews/crew_factory.h"
#include "client/coordrun/plan/coordinator_view.h"
#include "client/coordrun/plan/first_failure.h"
#include "client/coordrun/plan/run_flags.h"
#include "client/coordrun/plan/thread_share.h"
#include "client/coordrun/plan/torch_variables.h"
#include "client/coordrun/process/signals.h"
#include "client/coordrun/wire/host_look.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/launch/host_identity.h"

namespace coordd {
namespace {

// coordd exits within 2 s of SIGTERM.
constexpr absl::Duration kCoordinatorStop = absl::Seconds(3);
// Somebody outside of a worker's process group may hold its pipes open for ever.
constexpr absl::Duration kDrain = absl::Seconds(1);
// The loop stands still meanwhile.
constexpr absl::Duration kViewTimeout = absl::Milliseconds(500);
// At the end of a run, when nothing else is to be done: it says who was lost.
constexpr absl::Duration kLastViewTimeout = absl::Seconds(5);
// As workers wait for each other (COORDD_JOIN_TIMEOUT).
constexpr absl::Duration kPodsComeWithin = absl::Minutes(5);
constexpr absl::Duration kPodsPause = absl::Milliseconds(300);
constexpr absl::Duration kTellOfWaiting = absl::Seconds(10);
// At the end of a run, for coordd to hear how the last workers have ended.
constexpr absl::Duration kTellWithin = absl::Seconds(2);

bool Has(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found != environment.end() && !found->second.empty();
}

std::string OwnPath() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "coordrun" : self.string();
}

std::string WorkingDirectory(const RunOptions& options) {
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  return options.directory.empty() ? here.string() : (here / options.directory).string();
}

// A file in the working directory by which other hosts can tell that it is the same; its name, or
// empty where that is of no use or cannot be had.
std::string MakeMarker(const RunOptions& options, const RunPlan& plan, const std::string& directory,
                       std::string* path) {
  const bool elsewhere =
      plan.launcher == LauncherKind::kSsh || plan.launcher == LauncherKind::kSrun;
  if (!elsewhere || (!options.checks && !options.check_only)) return "";
  const std::string name = absl::StrCat(".", directory.substr(directory.rfind('/') + 1));
  *path = absl::StrCat(WorkingDirectory(options), "/", name);
  const OwnedFd file(open(path->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) path->clear();
  return path->empty() ? "" : name;
}

HostReport LookHere(const RunPlan& plan, const Environment& environment, Clock& clock) {
  HostReport here;
  here.asked = clock.Now();
  here.report.set_version(kVersion);
  here.report.set_host(ThisHost("").hostname);
  here.report.set_local_size(plan.np);
  here.report.set_workers(plan.np);
  LookAtHost(environment, &here.report);
  here.answered = clock.Now();
  here.report.set_unix_seconds(absl::ToDoubleSeconds(here.answered - absl::UnixEpoch()));
  return here;
}

// What of this machine's matters to torch, without opening a library for it.
HostReport GlanceHere(const RunPlan& plan) {
  HostReport here;
  here.report.set_host(ThisHost("").hostname);
  here.report.set_local_size(plan.np);
  LookAtCores(&here.report);
  LookAtSharedMemory(&here.report);
  return here;
}

// What the workers get of the user's variables.
Environment GivenTo(const RunOptions& options, Environment environment) {
  for (const auto& [name, value] : options.variables)
    if (value) environment[name] = *value;
  return environment;
}

}  // namespace

Launcher::Launcher(const RunOptions& options, const RunPlan& plan, std::string directory,
                   Environment environment, Clock& clock)
    : options_(options),
      plan_(plan),
      directory_(std::move(directory)),
      environment_(std::move(environment)),
      clock_(clock),
      start_(clock.Now()),
      output_(options, !Has(environment_, "NO_COLOR")),
      keeper_(options, environment_, clock, output_, report_.pids),
      hosts_(options) {}

int Launcher::Run() {
  absl::Status prepared = Prepare();
  if (prepared.ok()) prepared = AwaitCoordinator();
  const absl::Status fits = prepared.ok() ? keeper_.CheckSpeaks() : absl::OkStatus();
  if (prepared.ok()) prepared = fits.ok() ? ConnectCrew() : fits;
  RemoveMarker();
  if (prepared.ok()) {
    prepared = Check();
  } else if (options_.check_only && options_.json) {
    output_.Result(FindingsJson({}, {{true, "reach", "", std::string(prepared.message())}}));
  }
  if (!prepared.ok() || options_.check_only) {
    if (!prepared.ok()) output_.Say(absl::StrCat("coordrun: ", prepared.message()));
    KillEverything();
    if (interrupted_by_ != 0) return 128 + interrupted_by_;
    return prepared.ok() ? 0 : fits.ok() ? 1 : kExitUsage;
  }
  if (const absl::Status started = StartWorkers(); !started.ok()) {
    output_.Say(absl::StrCat("coordrun: ", started.message()));
    KillEverything();
    return absl::IsNotFound(started) ? 127 : 126;
  }
  RunWorkers();
  DrainWorkers();
  Finish();
  // What ends a coordd that stays up is no part of the run.
  const int exit_status = state_->exit_status();
  const std::string summary = SummaryJson(options_, *state_, report_);
  KeepCoordinator();
  StopCoordinator();
  if (options_.json) output_.Result(summary);
  crew_->KillAll();
  return exit_status;
}

absl::Status Launcher::Prepare() {
  COORDD_ASSIGN_OR_RETURN(signals_, OpenSignals());
  COORDD_RETURN_IF_ERROR(output_.OpenFiles());
  report_.job = JobName(options_, environment_);
  report_.pids.assign(static_cast<size_t>(plan_.np), 0);
  report_.hosts.assign(static_cast<size_t>(plan_.np), "");
  tails_.assign(static_cast<size_t>(plan_.np), TailLines(kTailLines));
  launches_.assign(static_cast<size_t>(plan_.np), "");
  if (options_.verbose) {
    output_.Say(absl::StrCat("coordrun: ", plan_.np, plan_.np == 1 ? " worker" : " workers",
                             ", launcher ", LauncherName(options_, plan_), ": ", plan_.reason));
  }
  for (const std::string& note : options_.notes) output_.Say(absl::StrCat("coordrun: ", note));
  AgentReport here;
  LookAtCores(&here);
  for (const std::string& note : {TorchOverrides(options_), OverlookedText(options_, environment_),
                                  ThreadsNote(options_, plan_, environment_, here.cores()),
                                  options_.check_only ? "" : BeginningText(options_, plan_)})
    if (!note.empty()) output_.Say(absl::StrCat("coordrun: ", note));
  const bool reads =
      std::find(options_.command.begin(), options_.command.end(), "-") != options_.command.end();
  if (reads && plan_.launcher != LauncherKind::kLocal) {
    output_.Say(absl::StrCat("coordrun: the command reads '-', and workers with launcher ",
                             LauncherName(options_, plan_),
                             " have an empty stdin: expected a file that all hosts have"));
  }
  COORDD_RETURN_IF_ERROR(keeper_.SetUp(plan_, directory_));
  COORDD_ASSIGN_OR_RETURN(
      crew_, MakeCrew({.options = options_,
                       .plan = plan_,
                       .coordinator = keeper_.coordinator(),
                       .environment = environment_,
                       .self = OwnPath(),
                       .directory = WorkingDirectory(options_),
                       .marker = MakeMarker(options_, plan_, directory_, &marker_),
                       .run_directory = directory_,
                       .place_of = [this](int32_t worker) { return hosts_.PlaceOf(worker); }}));
  if (!options_.discovery_script.empty()) hosts_.Begin(plan_, environment_);
  return absl::OkStatus();
}

absl::Status Launcher::AwaitCoordinator() {
  double seconds = 0;
  const bool is_said =
      absl::SimpleAtod(Variable(environment_, "COORDD_JOIN_TIMEOUT"), &seconds) && seconds > 0;
  const absl::Time begin = clock_.Now();
  const absl::Duration most = is_said ? absl::Seconds(seconds) : kPodsComeWithin;
  bool told = false;
  for (absl::Status found = keeper_.CheckIsThere(); !found.ok(); found = keeper_.CheckIsThere()) {
    if (interrupted_by_ != 0) return Interrupted();
    const absl::Duration waited = clock_.Now() - begin;
    if (waited >= most) {
      return absl::Status(found.code(),
                          absl::StrCat(found.message(), ", for ", absl::ToDoubleSeconds(most),
                                       " s (COORDD_JOIN_TIMEOUT): expected COORDD_ADDR to name a "
                                       "coordd that runs, or the first pod"));
    }
    if (waited >= kTellOfWaiting && !std::exchange(told, true))
      output_.Say(absl::StrCat("coordrun: waits for coordd: ", found.message()));
    const absl::Time next = clock_.Now() + kPodsPause;
    while (interrupted_by_ == 0 && clock_.Now() < next) Turn(next);
  }
  return absl::OkStatus();
}

absl::Status Launcher::Interrupted() const {
  return absl::CancelledError(absl::StrCat("the run was ended by ", SignalName(interrupted_by_),
                                           " before the workers were started"));
}

absl::Status Launcher::ConnectCrew() {
  COORDD_RETURN_IF_ERROR(crew_->Connect(clock_.Now()));
  const absl::Time deadline = clock_.Now() + options_.start_timeout;
  while (!crew_->ready() && interrupted_by_ == 0 && clock_.Now() < deadline) Turn(deadline);
  if (interrupted_by_ != 0) return Interrupted();
  const absl::Status failure = crew_->failure();
  const bool all_answer = crew_->ready();
  if (all_answer && failure.ok()) return failure;
  const std::string silence = absl::StrCat(
      "no answer within ", absl::ToDoubleSeconds(options_.start_timeout), " s (--start-timeout)");
  const std::string missing = all_answer ? "" : crew_->Missing();
  // What a script finds may be gone, or not there yet; so it is with hosts that come later.
  if (hosts_.change() && crew_->SetAside(options_.min_np, silence)) {
    for (size_t w = 0; w < report_.hosts.size(); ++w)
      report_.hosts[w] = hosts_.slots().slots()[w].host;
    return absl::OkStatus();
  }
  if (all_answer) return failure;
  return absl::DeadlineExceededError(
      absl::StrCat(failure.ok() ? "" : absl::StrCat(failure.message(), "\ncoordrun: "), silence,
                   " from ", missing));
}

void Launcher::RemoveMarker() {
  if (!marker_.empty()) unlink(marker_.c_str());
  marker_.clear();
}

absl::Status Launcher::Check() {
  if (!options_.checks && !options_.check_only) return absl::OkStatus();
  std::vector<HostReport> reports = crew_->reports();
  if (reports.empty() && options_.check_only)
    reports.push_back(LookHere(plan_, environment_, clock_));
  std::vector<Finding> findings = JudgeHosts(reports, plan_.launcher, kVersion);
  if (plan_.launcher != LauncherKind::kExternal) {
    if (reports.empty() && plan_.launcher == LauncherKind::kLocal)
      reports.push_back(GlanceHere(plan_));
    for (Finding& trap :
         JudgeTorchTraps(reports, GivenTo(options_, environment_), options_.command))
      findings.push_back(std::move(trap));
  }
  if (!findings.empty()) output_.Say(FindingsText(findings));
  if (options_.check_only && options_.json) output_.Result(FindingsJson(reports, findings));
  if (options_.check_only) output_.Say(absl::StrCat("coordrun: checked: ", HostsText(reports)));
  for (const Finding& finding : findings) {
    if (!finding.error) continue;
    return absl::FailedPreconditionError(
        "the hosts do not fit together, see above; --skip-checks starts the workers all the same");
  }
  return absl::OkStatus();
}

absl::Status Launcher::StartWorkers() {
  state_ = std::make_unique<RunState>(options_, clock_.Now());
  COORDD_RETURN_IF_ERROR(crew_->Start(*this));
  StartReporter();
  return absl::OkStatus();
}

void Launcher::RunWorkers() {
  bool told = false;
  std::string told_of_waiting;
  while (!state_->all_ended()) {
    Turn(std::min({state_->NextDeadline(), crew_->NextDeadline(), early_look_.NextDeadline(),
                   hosts_.NextDeadline()}));
    JudgeEnds();
    LookForEarlyExit(clock_.Now());
    state_->Tick(clock_.Now());
    RestartWorkers();
    const std::string waiting = WaitingText(options_, *state_);
    if (!waiting.empty() && waiting != told_of_waiting)
      output_.Say(absl::StrCat("coordrun: ", waiting));
    told_of_waiting = waiting;
    if (state_->ending() && state_->blame_is_final() && !state_->all_ended() && !told) {
      told = true;
      // While they still wait: who is missing is the answer to most questions.
      AskCoordinator(kViewTimeout);
      output_.Say(absl::StrCat("coordrun: ", EndingText(options_, *state_, report_),
                               "; ending the others"));
    }
    for (const int signal : state_->TakeSignals()) crew_->Signal(signal, clock_.Now());
    for (const auto& [worker, signal] : state_->TakeSingleSignals())
      crew_->SignalOne(worker, signal);
  }
}

void Launcher::LookForEarlyExit(absl::Time now) {
  if (!early_look_.IsDue(now) || state_->ending()) return;
  early_look_.Look(/*again=*/state_->only_restarted_are_alive(), now);
  const auto view = keeper_.FetchView(launches_, kViewTimeout);
  if (!view || NobodyHasCome(*view, report_)) early_look_.ToldNothing(now);
  if (!view) return;
  if (OnlyLatecomersAreLeft(*view, *state_, report_)) return state_->Finish(now);
  // Only with a coordd of our own: it knows nobody but our workers.
  if (!keeper_.is_own()) return;
  if (const auto found = FindEarlyExit(*view, *state_, report_)) {
    state_->Blame(found->worker, found->completes, now);
  }
}

void Launcher::DrainWorkers() {
  crew_->Finish();
  const absl::Time deadline = clock_.Now() + kDrain;
  while (!crew_->drained() && clock_.Now() < deadline) Turn(deadline);
  output_.Finish();
  CopyTails();
}

void Launcher::CopyTails() {
  report_.tails.clear();
  for (const TailLines& tail : tails_) report_.tails.push_back(tail.lines());
}

void Launcher::Finish() {
  report_.wall = clock_.Now() - start_;
  if (reporter_ != nullptr) reporter_->Flush(kTellWithin);
  // A run that has succeeded does not wait long for figures of somebody else's coordd.
  const bool matters = keeper_.is_own() || state_->exit_status() != 0;
  const auto view = AskCoordinator(matters ? kLastViewTimeout : kViewTimeout);
  if (view && state_->exit_status() != 0) {
    ExplainLostExits(*view, options_, *state_, &report_);
    report_.early_goodbye = EarlyGoodbye(*view, options_, *state_, launches_, report_);
  }
  // What coordd has said of the run comes before the last word about it.
  if (keeper_.is_own()) keeper_.Read();
  output_.Say(SummaryText(options_, *state_, report_));
}

void Launcher::KeepCoordinator() {
  keeper_.Release();
  if (!options_.keep || !keeper_.is_own() || state_->interrupted()) return;
  const CoordinatorAddresses& addresses = keeper_.coordinator().process->addresses;
  const char* scheme = options_.HttpHasTls() ? "https://" : "http://";
  const std::string page =
      addresses.http.empty() ? "" : absl::StrCat(", status page ", scheme, addresses.http, "/");
  output_.Say(absl::StrCat("coordrun: coordd stays up at ", addresses.listen, page,
                           "; end it with Ctrl-C"));
  while (!state_->interrupted() && !keeper_.has_ended()) Turn(absl::InfiniteFuture());
}

void Launcher::StopCoordinator() {
  keeper_.Release();
  if (!keeper_.is_own()) return;
  keeper_.Signal(SIGTERM);
  const absl::Time deadline = clock_.Now() + kCoordinatorStop;
  while (!keeper_.has_ended() && clock_.Now() < deadline) Turn(deadline);
  keeper_.Signal(SIGKILL);
  while (!keeper_.has_ended()) Turn(clock_.Now() + kDrain);
}

void Launcher::KillEverything() {
  if (crew_ != nullptr) crew_->KillAll();
  crew_.reset();
  StopCoordinator();
}

std::optional<v1::ServerState> Launcher::AskCoordinator(absl::Duration timeout) {
  auto state = keeper_.FetchView(launches_, timeout);
  if (!state) return state;
  CopyTails();
  AddView(*state, report_.job, launches_, &report_);
  report_.nobody_joined = NobodyHasCome(*state, report_);
  const auto first = FindFirstFailure(*state, report_.job, launches_, *state_);
  if (first) state_->FailedFirst(first->worker, first->what);
  return state;
}

void Launcher::Turn(absl::Time until) {
  std::vector<pollfd> fds;
  fds.push_back({.fd = signals_.get(), .events = POLLIN, .revents = 0});
  keeper_.Await(fds);
  // The script is asked while workers run.
  const bool discovers = state_ != nullptr && !state_->ending();
  const size_t script = fds.size();
  if (discovers) hosts_.Await(fds);
  const size_t own = fds.size();
  if (crew_ != nullptr) crew_->Await(fds);
  const absl::Duration left = std::max(until - clock_.Now(), absl::ZeroDuration());
  const int64_t milliseconds = absl::ToInt64Milliseconds(std::min(left, absl::Hours(1))) + 1;
  if (poll(fds.data(), fds.size(), static_cast<int>(milliseconds)) < 0) return;

  ReadSignals(signals_, [this](int signal) {
    if (state_ != nullptr) state_->SignalReceived(signal, clock_.Now());
    if (state_ == nullptr) interrupted_by_ = signal;
  });
  if (crew_ != nullptr) {
    crew_->Handle(absl::MakeConstSpan(fds).subspan(own), clock_.Now(), *this);
  }
  if (discovers) {
    const auto hosts =
        hosts_.Handle(absl::MakeConstSpan(fds).subspan(script, own - script), clock_.Now());
    if (hosts) TakeHosts(*hosts);
  }
  const bool needed = state_ != nullptr && !state_->ending();
  const auto end =
      keeper_.Handle(absl::MakeConstSpan(fds).subspan(1, CoordinatorKeeper::kEntries), needed);
  if (end) state_->CoordinatorEnded(*end, clock_.Now());
}

void Launcher::Notice(absl::string_view sentence) { output_.Say(sentence); }

}  // namespace coordd
