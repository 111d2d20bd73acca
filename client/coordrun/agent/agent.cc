#include "client/coordrun/agent/agent.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/coordrun/process/run_directory.h"
#include "client/coordrun/process/signals.h"
#include "client/coordrun/process/supervisor.h"
#include "client/coordrun/wire/host_look.h"
#include "common/base/atomic_file.h"
#include "common/base/refusal_line.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/launch/host_identity.h"
#include "common/launch/host_list.h"
#include "common/net/address.h"

namespace coordd {
namespace {

// Who started us sends them at once.
constexpr absl::Duration kOrdersWithin = absl::Seconds(60);
// Between hosts of a cluster; longer means that packets are dropped.
constexpr absl::Duration kReachWithin = absl::Seconds(3);
// Somebody outside of a worker's process group may hold its pipes open for ever.
constexpr absl::Duration kDrain = absl::Seconds(1);

absl::StatusOr<int32_t> Number(const Environment& environment, const std::string& name) {
  int32_t number = 0;
  const std::string text = Variable(environment, name);
  if (!absl::SimpleAtoi(text, &number) || number < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is '", text, "': expected what srun sets for a task"));
  }
  return number;
}

bool IsDirectory(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return false;
  if (S_ISDIR(found.st_mode)) return true;
  errno = ENOTDIR;
  return false;
}

}  // namespace

Agent::Agent(std::string directory, Environment environment, Clock& clock)
    : directory_(std::move(directory)), environment_(std::move(environment)), clock_(clock) {}

int Agent::Run() {
  auto signals = OpenSignals();
  if (!signals.ok()) return 1;
  signals_ = *std::move(signals);
  const absl::Time orders_end = clock_.Now() + kOrdersWithin;
  while (!ended_ && !failed_ && !started_) {
    Turn(ordered_ ? absl::InfiniteFuture() : orders_end);
    if (!ordered_ && clock_.Now() >= orders_end) return 1;
  }
  while (!ended_ && !failed_ && (alive_ > 0 || orders_.stay())) Turn(absl::InfiniteFuture());
  const absl::Time drain_end = clock_.Now() + kDrain;
  while (!ended_ && crew_ != nullptr && !crew_->drained() && clock_.Now() < drain_end) {
    Turn(drain_end);
  }
  if (crew_ != nullptr) crew_->KillAll();
  return ended_ || failed_ ? 1 : 0;  // what is left, whoever supervises us ends
}

void Agent::Turn(absl::Time until) {
  std::vector<pollfd> fds = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                             {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                             // Nothing to read from it: an error means that the reader is gone.
                             {.fd = STDOUT_FILENO, .events = 0, .revents = 0}};
  constexpr size_t kOwn = 3;
  if (crew_ != nullptr) {
    crew_->Await(fds);
    until = std::min(until, crew_->NextDeadline());
  }
  const absl::Duration left = std::max(until - clock_.Now(), absl::ZeroDuration());
  const int64_t milliseconds = absl::ToInt64Milliseconds(std::min(left, absl::Hours(1))) + 1;
  if (poll(fds.data(), fds.size(), static_cast<int>(milliseconds)) < 0) return;
  ReadSignals(signals_, [this](int signal) {
    if (crew_ != nullptr) crew_->Signal(signal, clock_.Now());
    if (crew_ == nullptr) ended_ = true;
  });
  if (crew_ != nullptr) {
    crew_->Handle(absl::MakeConstSpan(fds).subspan(kOwn), clock_.Now(), *this);
  }
  if ((fds[2].revents & (POLLERR | POLLNVAL)) != 0) ended_ = true;
  if (fds[1].revents != 0) ReadOrders();
}

void Agent::ReadOrders() {
  char buffer[64 << 10];
  const ssize_t got = read(STDIN_FILENO, buffer, sizeof(buffer));
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) {
    ended_ = true;
    return;
  }
  unread_.append(buffer, static_cast<size_t>(got));
  for (size_t end; !failed_ && (end = unread_.find('\n')) != std::string::npos;) {
    const std::string line = unread_.substr(0, end);
    unread_.erase(0, end + 1);
    Obey(line);
  }
  if (unread_.size() > kMaxOrderBytes) failed_ = true;
}

void Agent::Obey(absl::string_view line) {
  if (!ordered_) return TakeOrders(line);
  const auto order = ParseOrder(line);
  if (!order.ok()) return;
  if (order->has_start() && !started_) return StartWorkers();
  if (order->has_finish()) orders_.set_stay(false);
  if (torch_.Obey(*order) && crew_ != nullptr) crew_->SetVariables(torch_.MasterOf());
  if (order->order_case() == AgentOrder::kNewPort && order->new_port() == report_.number()) {
    AgentMessage message;
    message.set_port(torch_.PickPort());
    Tell(message);
  }
  if (crew_ != nullptr) ObeyWithCrew(*order);
}

void Agent::ObeyWithCrew(const AgentOrder& order) {
  if (order.order_case() == AgentOrder::kRestart) RestartWorker(order.restart());
  if (!order.has_signal()) return;
  const v1::SignalOrder& signal = order.signal();
  if (signal.worker() < 0) crew_->Signal(signal.signal(), clock_.Now());
  if (signal.worker() >= 0) crew_->SignalOne(signal.worker(), signal.signal());
}

void Agent::RestartWorker(int32_t worker) {
  // Several agents may read the same orders.
  const bool ours =
      std::any_of(orders_.workers().begin(), orders_.workers().end(),
                  [worker](const auto& ordered) { return ordered.index() == worker; });
  if (!ours) return;
  const absl::Status status = crew_->Restart(worker, *this);
  if (status.ok()) return;
  TellCannotRun(status, worker);
}

void Agent::TellCannotRun(const absl::Status& why, int32_t worker) {
  AgentMessage message;
  v1::AgentMessage::CannotRun& cannot = *message.mutable_cannot_run();
  cannot.set_status(absl::IsNotFound(why) ? 127 : 126);
  cannot.set_reason(std::string(why.message()));
  cannot.set_worker(worker);
  Tell(message);
}

void Agent::TakeOrders(absl::string_view line) {
  ordered_ = true;
  report_.set_protocol(kAgentProtocol);
  report_.set_version(kVersion);
  report_.set_host(ThisHost("").hostname);
  report_.set_workers(1);
  report_.set_local_size(1);
  report_.set_unix_seconds(absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch()));
  absl::Status status;
  if (auto orders = ParseOrders(line); orders.ok()) {
    orders_ = *std::move(orders);
    status = FindOurselves();
    if (status.ok()) status = WriteFiles();
    if (status.ok()) status = CheckHost();
  } else {
    status = orders.status();
  }
  if (!status.ok()) report_.set_problem(std::string(status.message()));
  failed_ = !status.ok();
  AgentMessage message;
  *message.mutable_report() = report_;
  Tell(message);
}

absl::Status Agent::FindOurselves() {
  report_.set_number(orders_.number());
  if (orders_.identity() == v1::AGENT_IDENTITY_SLURM) {
    COORDD_ASSIGN_OR_RETURN(const int32_t task, Number(environment_, "SLURM_PROCID"));
    COORDD_ASSIGN_OR_RETURN(const int32_t local_rank, Number(environment_, "SLURM_LOCALID"));
    COORDD_ASSIGN_OR_RETURN(const int32_t node, Number(environment_, "SLURM_NODEID"));
    COORDD_ASSIGN_OR_RETURN(
        const std::vector<int32_t> tasks,
        ExpandTasksPerNode(Variable(environment_, "SLURM_STEP_TASKS_PER_NODE")));
    if (node >= static_cast<int32_t>(tasks.size())) {
      return absl::FailedPreconditionError(
          absl::StrCat("SLURM_NODEID is ", node, ": expected less than ", tasks.size()));
    }
    report_.set_number(task);
    report_.set_local_size(tasks[static_cast<size_t>(node)]);
    if (const std::string name = Variable(environment_, "SLURMD_NODENAME"); !name.empty()) {
      report_.set_host(name);
    }
    orders_.clear_workers();
    v1::OrderedWorker& worker = *orders_.add_workers();
    worker.set_index(task);
    *worker.mutable_environment() =
        ToVariables({{"COORDD_RANK", absl::StrCat(task)},
                     {"COORDD_LOCAL_RANK", absl::StrCat(local_rank)},
                     {"COORDD_LOCAL_SIZE", absl::StrCat(report_.local_size())}});
  } else {
    report_.set_local_size(orders_.workers_size());
  }
  report_.set_workers(orders_.workers_size());
  return absl::OkStatus();
}

absl::Status Agent::WriteFiles() {
  for (const v1::OrderedFile& file : orders_.files()) {
    if (file.name().empty() || file.name().find('/') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("a file named '", file.name(), "' was ordered"));
    }
    const std::string path = absl::StrCat(directory_, "/", file.name());
    COORDD_RETURN_IF_ERROR(WriteFileAtomically(path, file.contents(), 0600));
    if (!file.variable().empty()) files_[file.variable()] = path;
  }
  return absl::OkStatus();
}

absl::Status Agent::CheckHost() {
  if (!orders_.directory().empty() && !IsDirectory(orders_.directory())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the working directory ", orders_.directory(), " cannot be used there: ",
        std::strerror(errno), "; start from a folder that all hosts have, or give --chdir"));
  }
  report_.set_marker_missing(
      !orders_.marker().empty() &&
      access(absl::StrCat(orders_.directory(), "/", orders_.marker()).c_str(), F_OK) != 0);
  std::vector<std::string> addresses(orders_.coordinators().begin(), orders_.coordinators().end());
  // Where ssh has come from is known to be a way between the two hosts.
  const std::vector<std::string> ssh =
      absl::StrSplit(Variable(environment_, "SSH_CONNECTION"), ' ');
  std::stable_partition(addresses.begin(), addresses.end(), [&ssh](const std::string& address) {
    return ParseHostPort(address).value_or(HostPort()).host == ssh[0];
  });
  if (!addresses.empty()) {
    const auto reached = FirstReachable(addresses, kReachWithin);
    if (!reached.ok()) {
      return absl::UnavailableError(absl::StrCat(
          "coordd on the launch node cannot be reached from there (", reached.status().message(),
          "); let that port through (--port-range says which), or name a network of the "
          "launch node that it can reach with --network-interfaces"));
    }
    report_.set_coordinator(*reached);
  }
  if (orders_.workers().empty()) return absl::OkStatus();
  const Environment first = EnvironmentOf(orders_.workers(0));
  torch_.Begin(orders_, first, &report_);
  if (orders_.look()) LookAtHost(first, &report_);
  return absl::OkStatus();
}

Environment Agent::EnvironmentOf(const v1::OrderedWorker& worker) const {
  Environment environment = environment_;
  const auto set = [&environment](const Environment& more) {
    for (const auto& [name, value] : more) environment[name] = value;
  };
  // A bash that finds these takes itself for a login by hand, and reads ~/.bashrc.
  for (const char* name : {"SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY"}) environment.erase(name);
  set(FromVariables(orders_.environment()));
  for (const std::string& name : orders_.unset()) environment.erase(name);
  set(files_);
  if (!report_.coordinator().empty()) environment["COORDD_ADDR"] = report_.coordinator();
  set(FromVariables(worker.environment()));
  set(torch_.VariablesOf(worker.index(), environment));
  return environment;
}

void Agent::StartWorkers() {
  std::vector<WorkerOrder> workers;
  for (const v1::OrderedWorker& worker : orders_.workers()) {
    workers.push_back({worker.index(), EnvironmentOf(worker)});
  }
  std::vector<std::string> command(orders_.command().begin(), orders_.command().end());
  crew_ = std::make_unique<LocalCrew>(std::move(command), orders_.directory(), std::move(workers),
                                      orders_.relay() ? directory_ : "");
  const absl::Status status = crew_->Start(*this);
  started_ = true;
  if (status.ok()) return;
  failed_ = true;
  alive_ = 0;
  TellCannotRun(status, -1);
}

void Agent::WorkerStarted(int32_t worker, const std::string& /*host*/, pid_t pid,
                          const std::string& launch) {
  ++alive_;
  AgentMessage message;
  v1::AgentMessage::Started& started = *message.mutable_started();
  started.set_worker(worker);
  started.set_pid(pid);
  started.set_launch(launch);
  Tell(message);
}

void Agent::WorkerSaid(int32_t worker, Stream stream, const OutputPiece& piece) {
  Send({stream == Stream::kOut ? FrameKind::kOut : FrameKind::kErr, worker, PieceText(piece)});
}

void Agent::WorkerEnded(int32_t worker, const ProcessEnd& end) {
  --alive_;
  AgentMessage message;
  v1::AgentMessage::Ended& ended = *message.mutable_ended();
  ended.set_worker(worker);
  ended.set_code(end.code);
  ended.set_signal(end.signal);
  Tell(message);
}

void Agent::Notice(absl::string_view /*sentence*/) {}

void Agent::Tell(const AgentMessage& message) {
  Send({FrameKind::kControl, report_.number(), Line(message)});
}

void Agent::Send(const Frame& frame) {
  const std::string lines = EncodeFrame(frame);
  absl::string_view left = lines;
  while (!left.empty() && !ended_) {
    // A line at a time, which is less than PIPE_BUF: written whole or not at all.
    const absl::string_view line = left.substr(0, left.find('\n') + 1);
    const ssize_t n = write(STDOUT_FILENO, line.data(), line.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      pollfd room = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
      poll(&room, 1, 1000);
      continue;
    }
    if (n <= 0) ended_ = true;
    if (n > 0) left.remove_prefix(static_cast<size_t>(n));
  }
}

int RunAgent(const Environment& environment, Clock& clock) {
  const auto directory = MakeRunDirectory(environment);
  if (!directory.ok()) {
    std::fputs(RefusalLine("coordrun", directory.status().message()).c_str(), stderr);
    return 1;
  }
  return RunSupervised(*directory, [&] { return Agent(*directory, environment, clock).Run(); });
}

}  // namespace coordd
