#include "client/coordrun/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/coordctl/admin_client.h"
#include "client/coordrun/run_directory.h"
#include "common/address.h"
#include "common/certs.h"
#include "common/status_macros.h"

namespace coordd {
namespace {

// A coordd that does not listen within this time never will.
constexpr absl::Duration kCoordinatorStart = absl::Seconds(10);
// It exits within 2 s of SIGTERM.
constexpr absl::Duration kCoordinatorStop = absl::Seconds(3);
// Somebody outside of a worker's process group may hold its pipes open for ever.
constexpr absl::Duration kDrain = absl::Seconds(1);
// The loop stands still meanwhile.
constexpr absl::Duration kViewTimeout = absl::Milliseconds(500);
constexpr size_t kTailLines = 5;
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

std::string Variable(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

// Blocks the signals that are read from the descriptor instead.
absl::StatusOr<UniqueFd> OpenSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kSignals) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  UniqueFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.open()) return absl::UnavailableError(absl::StrCat("signalfd: ", std::strerror(errno)));
  return fd;
}

// Reads what is there into `lines`; closes `fd` at the end of the stream.
void ReadLines(UniqueFd& fd, LineSplitter& lines, const LineSplitter::Emit& emit) {
  char buffer[16 << 10];
  const ssize_t got = read(fd.get(), buffer, sizeof(buffer));
  if (got > 0) {
    lines.Feed(absl::string_view(buffer, static_cast<size_t>(got)), emit);
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    lines.Finish(emit);
    fd.Close();
  }
}

}  // namespace

Launcher::Launcher(const RunOptions& options, Environment environment, Clock& clock)
    : options_(options),
      environment_(std::move(environment)),
      clock_(clock),
      start_(clock.Now()),
      output_(options, Variable(environment_, "NO_COLOR").empty()) {}

int Launcher::Run() {
  if (const absl::Status prepared = Prepare(); !prepared.ok()) {
    output_.Say(absl::StrCat("coordrun: ", prepared.message()));
    KillEverything();
    return 1;
  }
  if (const absl::Status started = StartWorkers(); !started.ok()) {
    output_.Say(absl::StrCat("coordrun: ", started.message()));
    KillEverything();
    return absl::IsNotFound(started) ? 127 : 126;
  }
  RunWorkers();
  DrainWorkers();
  report_.wall = clock_.Now() - start_;
  const int exit_status = state_->exit_status();
  if (exit_status != 0) AddToView(CoordinatorView());
  output_.Say(SummaryText(options_, *state_, report_));
  if (options_.json && !options_.keep) output_.Result(SummaryJson(options_, *state_, report_));
  const std::string summary = SummaryJson(options_, *state_, report_);
  KeepCoordinator();
  StopCoordinator();
  if (options_.json && options_.keep) output_.Result(summary);
  EndChildrenBut(guardian_->pid());
  guardian_.reset();
  return exit_status;
}

absl::Status Launcher::Prepare() {
  COORDD_ASSIGN_OR_RETURN(signals_, OpenSignals());
  AdoptOrphans();
  COORDD_ASSIGN_OR_RETURN(directory_, MakeRunDirectory(environment_));
  COORDD_ASSIGN_OR_RETURN(guardian_, Guardian::Start(directory_));
  COORDD_RETURN_IF_ERROR(output_.OpenFiles());
  rendezvous_.job = options_.job;
  if (rendezvous_.job.empty() && !options_.coordinator.empty()) {
    rendezvous_.job = Variable(environment_, "COORDD_JOB_ID");
  }
  if (rendezvous_.job.empty()) rendezvous_.job = JobNameFrom(options_.command[0]);
  report_.job = rendezvous_.job;
  rendezvous_.token_file = options_.token_file;
  if (options_.coordinator.empty()) return PrepareCoordinator();

  rendezvous_.address = options_.coordinator;
  rendezvous_.tls = options_.coordinator_tls;
  if (!rendezvous_.tls.enabled()) {
    rendezvous_.tls = {.cert = Variable(environment_, "COORDD_TLS_CERT"),
                       .key = Variable(environment_, "COORDD_TLS_KEY"),
                       .ca = Variable(environment_, "COORDD_TLS_CA")};
  }
  if (rendezvous_.token_file.empty()) {
    rendezvous_.token_file = Variable(environment_, "COORDD_TOKEN_FILE");
  }
  // Workers of other coordruns would have to know a token that is made here.
  const bool all_here = options_.size == 0 || options_.size == options_.np;
  if (rendezvous_.token_file.empty() && all_here) {
    COORDD_ASSIGN_OR_RETURN(rendezvous_.token_file, WriteToken(directory_));
  }
  return absl::OkStatus();
}

absl::Status Launcher::PrepareCoordinator() {
  if (rendezvous_.token_file.empty()) {
    COORDD_ASSIGN_OR_RETURN(rendezvous_.token_file, WriteToken(directory_));
  }
  TlsFiles server_tls;
  if (options_.tls) {
    const std::string certificates = directory_ + "/tls";
    CertOptions certs;
    certs.server_names = {ParseHostPort(options_.listen)->host};
    COORDD_RETURN_IF_ERROR(MakeCertificates(certificates, certs));
    unlink((certificates + "/ca.key").c_str());  // nothing more is to be signed in this run
    server_tls = ServerTlsFiles(certificates);
    rendezvous_.tls = WorkerTlsFiles(certificates);
  }
  COORDD_ASSIGN_OR_RETURN(coordinator_, StartCoordinator(options_, server_tls, environment_,
                                                         clock_.Now() + kCoordinatorStart, clock_));
  guardian_->Watch(coordinator_->process.pid());
  rendezvous_.address = coordinator_->addresses.listen;
  return absl::OkStatus();
}

absl::Status Launcher::StartWorkers() {
  for (int32_t r = 0; r < options_.np; ++r) {
    COORDD_ASSIGN_OR_RETURN(Environment environment,
                            EnvironmentOfWorker(options_, rendezvous_, r, environment_));
    COORDD_ASSIGN_OR_RETURN(
        ChildProcess process,
        ChildProcess::Start({.command = options_.command, .environment = std::move(environment)}));
    guardian_->Watch(process.pid());
    report_.pids.push_back(process.pid());
    workers_.push_back(Worker{std::move(process), {}, {}, TailLines(kTailLines)});
  }
  state_ = std::make_unique<RunState>(options_, clock_.Now());
  return absl::OkStatus();
}

void Launcher::RunWorkers() {
  bool told = false;
  while (!state_->all_ended()) {
    Turn(state_->NextDeadline());
    state_->Tick(clock_.Now());
    if (state_->ending() && state_->blame_is_final() && !state_->all_ended() && !told) {
      told = true;
      output_.Say(absl::StrCat("coordrun: ", EndingText(options_, *state_, report_),
                               "; ending the others"));
      // While they still wait: who is missing is the answer to most questions.
      AddToView(CoordinatorView());
    }
    SendSignals();
  }
}

void Launcher::DrainWorkers() {
  const absl::Time deadline = clock_.Now() + kDrain;
  while (!DrainedWorkers() && clock_.Now() < deadline) Turn(deadline);
  for (const Worker& worker : workers_) report_.tails.push_back(worker.tail.lines());
}

bool Launcher::DrainedWorkers() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return !worker.process.out_open() && !worker.process.err_open();
  });
}

void Launcher::KeepCoordinator() {
  workers_needed_coordinator_ = false;
  if (!options_.keep || !coordinator_ || state_->interrupted()) return;
  const CoordinatorAddresses& addresses = coordinator_->addresses;
  output_.Say(absl::StrCat("coordrun: coordd stays up at ", addresses.listen,
                           addresses.http.empty() ? "" : ", status page http://", addresses.http,
                           addresses.http.empty() ? "" : "/", "; end it with Ctrl-C"));
  while (!state_->interrupted() && !coordinator_->process.reaped()) Turn(absl::InfiniteFuture());
}

void Launcher::StopCoordinator() {
  if (!coordinator_) return;
  coordinator_->process.Signal(SIGTERM);
  const absl::Time deadline = clock_.Now() + kCoordinatorStop;
  while (!coordinator_->process.reaped() && clock_.Now() < deadline) Turn(deadline);
  coordinator_->process.Signal(SIGKILL);
  while (!coordinator_->process.reaped()) Turn(clock_.Now() + kDrain);
}

void Launcher::KillEverything() {
  for (Worker& worker : workers_) {
    worker.process.Signal(SIGKILL);
    while (!worker.process.Reap()) {
      pollfd ended = {.fd = worker.process.pidfd(), .events = POLLIN, .revents = 0};
      poll(&ended, 1, 1000);
    }
    guardian_->Forget(worker.process.pid());
  }
  workers_.clear();
  workers_needed_coordinator_ = false;
  StopCoordinator();
  if (guardian_) EndChildrenBut(guardian_->pid());
  guardian_.reset();
}

void Launcher::SendSignals() {
  for (const int signal : state_->TakeSignals()) {
    for (const Worker& worker : workers_) worker.process.Signal(signal);
  }
}

std::vector<std::string> Launcher::CoordinatorView() const {
  if (rendezvous_.address.empty() || (coordinator_ && coordinator_->process.reaped())) return {};
  const auto state =
      FetchState({rendezvous_.address, rendezvous_.tls}, rendezvous_.job, kViewTimeout);
  if (!state.ok()) return {};
  return DescribeView(*state, rendezvous_.job);
}

void Launcher::AddToView(std::vector<std::string> sentences) {
  std::vector<std::string>& view = report_.coordinator_view;
  for (std::string& sentence : sentences) {
    if (std::find(view.begin(), view.end(), sentence) == view.end()) {
      view.push_back(std::move(sentence));
    }
  }
}

void Launcher::Turn(absl::Time until) {
  std::vector<pollfd> fds;
  const auto add = [&fds](int fd) { fds.push_back({.fd = fd, .events = POLLIN, .revents = 0}); };
  // Three for each process, in a fixed order; poll skips the negative ones.
  add(signals_.get());
  for (Worker& worker : workers_) {
    add(worker.process.reaped() ? -1 : worker.process.pidfd());
    add(worker.process.out().get());
    add(worker.process.err().get());
  }
  if (coordinator_) {
    add(coordinator_->process.reaped() ? -1 : coordinator_->process.pidfd());
    add(coordinator_->process.out().get());
    add(coordinator_->process.err().get());
  }
  const absl::Duration left = std::max(until - clock_.Now(), absl::ZeroDuration());
  const int64_t milliseconds = absl::ToInt64Milliseconds(std::min(left, absl::Hours(1))) + 1;
  if (poll(fds.data(), fds.size(), static_cast<int>(milliseconds)) <= 0) return;

  const absl::Time now = clock_.Now();
  if (fds[0].revents != 0) ReadSignals(now);
  for (size_t r = 0; r < workers_.size(); ++r) {
    const pollfd* own = &fds[1 + 3 * r];
    // What it wrote before it ended comes first.
    ReadWorker(static_cast<int32_t>(r), own[1].revents != 0, own[2].revents != 0);
    if (own[0].revents != 0) ReapWorker(static_cast<int32_t>(r), now);
  }
  if (!coordinator_) return;
  const pollfd* own = &fds[1 + 3 * workers_.size()];
  if (own[1].revents != 0 || own[2].revents != 0) ReadCoordinator();
  if (own[0].revents != 0) ReapCoordinator(now);
}

void Launcher::ReadSignals(absl::Time now) {
  signalfd_siginfo received;
  while (read(signals_.get(), &received, sizeof(received)) == sizeof(received)) {
    if (state_) state_->SignalReceived(static_cast<int>(received.ssi_signo), now);
  }
}

void Launcher::ReadWorker(int32_t local_rank, bool out, bool err) {
  Worker& worker = workers_[static_cast<size_t>(local_rank)];
  if (out) {
    ReadLines(worker.process.out(), worker.out_lines,
              [&](absl::string_view line) { output_.WorkerLine(local_rank, Stream::kOut, line); });
  }
  if (err) {
    ReadLines(worker.process.err(), worker.err_lines, [&](absl::string_view line) {
      worker.tail.Add(line);
      output_.WorkerLine(local_rank, Stream::kErr, line);
    });
  }
}

void Launcher::ReapWorker(int32_t local_rank, absl::Time now) {
  Worker& worker = workers_[static_cast<size_t>(local_rank)];
  const std::optional<ProcessEnd> end = worker.process.Reap();
  if (!end) return;
  guardian_->Forget(worker.process.pid());
  state_->WorkerEnded(local_rank, *end, now);
}

void Launcher::ReadCoordinator() {
  ChildProcess& process = coordinator_->process;
  // Its stdout says that it is ready, which the run shows anyway.
  if (process.out_open()) ReadLines(process.out(), coordinator_out_, [](absl::string_view) {});
  if (process.err_open()) {
    ReadLines(process.err(), coordinator_err_,
              [&](absl::string_view line) { output_.CoordinatorLine(line); });
  }
}

void Launcher::ReapCoordinator(absl::Time now) {
  const std::optional<ProcessEnd> end = coordinator_->process.Reap();
  if (!end) return;
  guardian_->Forget(coordinator_->process.pid());
  if (workers_needed_coordinator_ && state_) state_->CoordinatorEnded(*end, now);
}

}  // namespace coordd
