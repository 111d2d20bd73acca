#include "client/coordrun/crews/local_crew.h"

#include <signal.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/coordrun/plan/worker_environment.h"
#include "client/coordrun/process/read_lines.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

bool Readable(int fd) {
  pollfd look = {.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&look, 1, 0) > 0;
}

}  // namespace

LocalCrew::LocalCrew(std::vector<std::string> command, std::string directory,
                     std::vector<WorkerOrder> orders, std::string relay_directory)
    : command_(std::move(command)),
      directory_(std::move(directory)),
      relay_directory_(std::move(relay_directory)),
      orders_(std::move(orders)) {}

// Without it the workers speak to coordd themselves.
void LocalCrew::BeginRelay(CrewEvents& events) {
  if (relay_directory_.empty() || orders_.empty()) return;
  RelayProcess relay(relay_directory_, orders_.front().environment);
  const absl::Status started = relay.Start(Clock::Real());
  if (!started.ok()) return events.Notice(started.message());
  for (WorkerOrder& order : orders_) order.environment["COORDD_NODE_SESSION"] = relay.address();
  relay_.emplace(std::move(relay));
}

void LocalCrew::KeepRelay(bool ended, absl::Time now, CrewEvents& events) {
  if (!relay_.has_value()) return;
  if (ended) {
    if (const std::string said = relay_->Ended(now); !said.empty()) events.Notice(said);
  }
  if (now < relay_->starts_again()) return;
  if (const absl::Status again = relay_->StartAgain(now); !again.ok())
    events.Notice(absl::StrCat("the relay of this node is not started again: ", again.message()));
}

absl::StatusOr<LocalCrew::Worker> LocalCrew::StartOne(const WorkerOrder& order, int32_t start,
                                                      CrewEvents& events) const {
  ChildRequest request = {.command = command_,
                          .environment = order.environment,
                          .directory = directory_,
                          .inherits_input = order.has_input};
  const auto run = request.environment.find("COORDD_LAUNCH_ID");
  const bool reported = run != request.environment.end();
  if (reported) run->second = LaunchId(run->second, order.index, start);
  COORDD_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(request));
  events.WorkerStarted(order.index, "", process.pid(), reported ? run->second : "");
  return Worker{order.index, std::move(process), {}, {}, start};
}

absl::Status LocalCrew::Start(CrewEvents& events) {
  BeginRelay(events);
  for (const WorkerOrder& order : orders_) {
    COORDD_ASSIGN_OR_RETURN(Worker worker, StartOne(order, 0, events));
    workers_.push_back(std::move(worker));
  }
  return absl::OkStatus();
}

void LocalCrew::SetVariables(const Environment& variables) {
  for (WorkerOrder& order : orders_) {
    for (const auto& [name, value] : variables) order.environment[name] = value;
  }
}

absl::Status LocalCrew::Restart(int32_t worker, CrewEvents& events) {
  if (on_restart_ != nullptr) SetVariables(on_restart_());
  for (size_t i = 0; i < orders_.size(); ++i) {
    if (orders_[i].index != worker) continue;
    COORDD_ASSIGN_OR_RETURN(workers_[i], StartOne(orders_[i], workers_[i].start + 1, events));
  }
  return absl::OkStatus();
}

void LocalCrew::Await(std::vector<pollfd>& fds) {
  const auto add = [&fds](int fd) { fds.push_back({.fd = fd, .events = POLLIN, .revents = 0}); };
  // Three for each process, in a fixed order; poll skips the negative ones.
  for (Worker& worker : workers_) {
    add(worker.process.reaped() ? -1 : worker.process.pidfd());
    add(worker.process.out().get());
    add(worker.process.err().get());
  }
  add(relay_.has_value() ? relay_->pidfd() : -1);
}

absl::Time LocalCrew::NextDeadline() const {
  absl::Time next = relay_.has_value() ? relay_->starts_again() : absl::InfiniteFuture();
  for (const Worker& worker : workers_) {
    next = std::min({next, worker.out_pieces.NextDeadline(), worker.err_pieces.NextDeadline()});
  }
  return next;
}

void LocalCrew::Handle(absl::Span<const pollfd> fds, absl::Time now, CrewEvents& events) {
  if (!fds.empty()) KeepRelay(fds.back().revents != 0, now, events);
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    const auto say = [&](Stream stream) {
      return [&events, &worker, stream](const OutputPiece& piece) {
        events.WorkerSaid(worker.index, stream, piece);
      };
    };
    // What it wrote before it ended comes first.
    if (fds[3 * i + 1].revents != 0)
      ReadPieces(worker.process.out(), worker.out_pieces, now, say(Stream::kOut));
    if (fds[3 * i + 2].revents != 0)
      ReadPieces(worker.process.err(), worker.err_pieces, now, say(Stream::kErr));
    worker.out_pieces.Tick(now, say(Stream::kOut));
    worker.err_pieces.Tick(now, say(Stream::kErr));
    if (fds[3 * i].revents == 0) continue;
    const auto end = worker.process.Reap();
    if (!end) continue;
    ReadLastWords(worker, now, events);
    events.WorkerEnded(worker.index, *end);
  }
}

// What it wrote last is there, also what it never ended with a line. Its descendants may hold the
// pipe open; they are not waited for.
void LocalCrew::ReadLastWords(Worker& worker, absl::Time now, CrewEvents& events) {
  const auto say = [&](const OutputPiece& piece) {
    events.WorkerSaid(worker.index, Stream::kErr, piece);
  };
  constexpr int kMostReads = 16;  // a pipe holds 64 KiB
  for (int i = 0; i < kMostReads && worker.process.err_open(); ++i) {
    if (!Readable(worker.process.err().get())) break;
    ReadPieces(worker.process.err(), worker.err_pieces, now, say);
  }
  worker.err_pieces.Finish(say);
}

void LocalCrew::Signal(int signal, absl::Time /*now*/) {
  for (const Worker& worker : workers_) worker.process.Signal(signal);
}

void LocalCrew::SignalOne(int32_t worker, int signal) {
  for (const Worker& known : workers_) {
    if (known.index == worker) known.process.Signal(signal);
  }
}

bool LocalCrew::drained() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return !worker.process.out_open() && !worker.process.err_open();
  });
}

void LocalCrew::KillAll() {
  const auto kill = [](ChildProcess& process) {
    process.Signal(SIGKILL);
    while (!process.reaped() && !process.Reap()) {
      pollfd ended = {.fd = process.pidfd(), .events = POLLIN, .revents = 0};
      poll(&ended, 1, 1000);
    }
  };
  for (Worker& worker : workers_) kill(worker.process);
  if (relay_.has_value()) relay_->Kill();
}

}  // namespace coordd
