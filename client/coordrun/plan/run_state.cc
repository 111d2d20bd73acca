#include "client/coordrun/plan/run_state.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr int kTimeoutStatus = 124;  // as timeout(1) has it

bool EndsTheRun(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

}  // namespace

RunState::RunState(const RunOptions& options, absl::Time start)
    : min_np_(options.min_np),
      hosts_change_(!options.discovery_script.empty()),
      patience_{.linger = options.linger,
                .grace = options.grace,
                .elastic = options.elastic_timeout,
                .drain = options.drain_grace},
      drained_status_(options.pods.min_workers > 0 ? std::optional(options.drained_status)
                                                   : std::nullopt),
      timeout_(start + options.timeout),
      workers_(static_cast<size_t>(options.np)),
      alive_(options.np),
      restarts_(options) {
  for (Worker& worker : workers_) worker.started = start;
}

void RunState::Enter(Phase phase, absl::Time now) {
  phase_ = phase;
  hosts_by_ = absl::InfiniteFuture();
  CancelRestarts();
  if (phase != Phase::kLingering) blame_.Close();
  switch (phase) {
    case Phase::kRunning:
      break;
    case Phase::kLingering:
      phase_end_ = now + patience_.linger;
      break;
    case Phase::kTerminating:
      phase_end_ = now + patience_.grace;
      break;
    case Phase::kKilling:
      signals_.push_back(SIGKILL);
      phase_end_ = absl::InfiniteFuture();  // nobody survives SIGKILL for long
      break;
  }
}

bool RunState::EnoughAreLeft() const {
  // coordd waits for min_np. Whoever is alive may have the state.
  if (hosts_change_) return alive_ > 0;
  const auto failed = [](const Worker& worker) {
    return worker.away || (worker.end && !worker.end->ok());
  };
  const auto failures = std::count_if(workers_.begin(), workers_.end(), failed);
  return min_np_ > 0 && static_cast<int64_t>(workers_.size()) - failures >= min_np_;
}

void RunState::WorkerEnded(int32_t local_rank, const ProcessEnd& end, absl::Time now) {
  Worker& worker = workers_[static_cast<size_t>(local_rank)];
  if (worker.end) return;
  worker.end = end;
  worker.ran = now - worker.started;
  worker.ended_by_itself = phase_ == Phase::kRunning || phase_ == Phase::kLingering;
  --alive_;
  worker.term_at = worker.kill_at = absl::InfiniteFuture();
  if (worker.away) {
    if (!worker.comes_back || phase_ != Phase::kRunning) return NoteNobodyIsLeft(now);
    worker.away = worker.comes_back = false;
    worker.unused = true;
    worker.restart_at = now;
    return;
  }
  blame_.FailToo(local_rank, end, now);
  if (end.ok()) CancelRestarts();
  if (end.ok() || phase_ != Phase::kRunning) return;
  // Where others have come to their end, nobody waits for one that was not even started.
  if (EnoughAreLeft() || (end.unreached && some_are_through())) {
    losses_.without.push_back(local_rank);
    PlanRestart(worker, now);
    return;
  }
  blame_.Fail(local_rank, end, now);
  Enter(Phase::kLingering, now);
}

void RunState::DrainedWorkerEnded(int32_t local_rank, const ProcessEnd& end, absl::Time now) {
  Worker& worker = workers_[static_cast<size_t>(local_rank)];
  if (worker.end || phase_ != Phase::kRunning) return WorkerEnded(local_rank, end, now);
  worker.drained = true;
  worker.away = true;
  WorkerEnded(local_rank, end, now);
}

size_t RunState::drained_workers() const {
  return static_cast<size_t>(std::count_if(workers_.begin(), workers_.end(),
                                           [](const Worker& worker) { return worker.drained; }));
}

bool RunState::RestartsAreDue() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.restart_at != absl::InfiniteFuture();
  });
}

bool RunState::HostsMayCome() const {
  const auto hostless = [](const Worker& worker) { return worker.away && !worker.drained; };
  return hosts_change_ && phase_ == Phase::kRunning && alive_ == 0 && !RestartsAreDue() &&
         !some_are_through() && std::any_of(workers_.begin(), workers_.end(), hostless);
}

void RunState::NoteNobodyIsLeft(absl::Time now) {
  if (HostsMayCome()) hosts_by_ = std::min(hosts_by_, now + patience_.elastic);
}

bool RunState::some_are_through() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.end && worker.end->ok() && !worker.away && !worker.unused;
  });
}

void RunState::PlanRestart(Worker& worker, absl::Time now) {
  if (some_are_through()) return;
  if (const auto rest = restarts_.Take(worker.ran, worker.strikes)) worker.restart_at = now + *rest;
}

void RunState::AddSlot(absl::Time now) {
  Worker& worker = workers_.emplace_back();
  worker.end = ProcessEnd{};
  worker.started = now;
  worker.away = worker.late = true;
}

void RunState::SlotCame(int32_t local_rank, absl::Time now) {
  Worker& worker = workers_[static_cast<size_t>(local_rank)];
  if (!worker.away || phase_ != Phase::kRunning || some_are_through()) return;
  if (!worker.end) {
    worker.comes_back = true;
    return;
  }
  worker.away = false;
  worker.unused = true;
  worker.restart_at = now;
  hosts_by_ = absl::InfiniteFuture();
}

void RunState::SlotWent(int32_t local_rank, absl::Time now, absl::Duration leaves_within) {
  Worker& worker = workers_[static_cast<size_t>(local_rank)];
  worker.away = true;
  worker.comes_back = false;
  worker.restart_at = absl::InfiniteFuture();
  std::erase(losses_.without, local_rank);  // it would not be started again anyway
  if (worker.end || phase_ != Phase::kRunning) return NoteNobodyIsLeft(now);
  worker.term_at = now + leaves_within;
  Terminate(local_rank, now);
}

void RunState::Terminate(int32_t local_rank, absl::Time now) {
  Worker& worker = workers_[static_cast<size_t>(local_rank)];
  if (now < worker.term_at) return;
  worker.term_at = absl::InfiniteFuture();
  single_signals_.emplace_back(local_rank, SIGTERM);
  worker.kill_at = now + patience_.grace;
}

void RunState::CancelRestarts() {
  for (Worker& worker : workers_) worker.restart_at = absl::InfiniteFuture();
}

std::vector<int32_t> RunState::TakeRestarts(absl::Time now) {
  std::vector<int32_t> due;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].restart_at > now) continue;
    workers_[i].restart_at = absl::InfiniteFuture();
    due.push_back(static_cast<int32_t>(i));
  }
  return due;
}

void RunState::WorkerRestarted(int32_t local_rank, absl::Time now) {
  Worker& worker = workers_[static_cast<size_t>(local_rank)];
  worker.end.reset();
  worker.unused = worker.drained = false;
  worker.started = now;
  ++worker.restarts;
  ++alive_;
  if (std::erase(losses_.without, local_rank) > 0) ++losses_.repaired;
}

void RunState::RestartFailed(int32_t local_rank, absl::Time now) {
  Worker& worker = workers_[static_cast<size_t>(local_rank)];
  if (hosts_change_ && phase_ == Phase::kRunning) PlanRestart(worker, now);
}

void RunState::Blame(int32_t local_rank, const std::string& reason, absl::Time now) {
  const bool has_ended = workers_[static_cast<size_t>(local_rank)].end.has_value();
  if (blame_.worker() || phase_ != Phase::kRunning || !has_ended) return;
  blame_.Accuse(local_rank, reason, now);
  Enter(Phase::kLingering, now);
}

void RunState::FailedFirst(int32_t local_rank, const std::string& says) {
  if (min_np_ == 0 && !hosts_change_) blame_.Learn(local_rank, says);
}

void RunState::CoordinatorEnded(const ProcessEnd& end, absl::Time now) {
  if (coordinator_end_) return;
  coordinator_end_ = end;
  if (phase_ == Phase::kRunning) Enter(Phase::kLingering, now);
}

void RunState::JobEnded(const std::string& why, absl::Time now) {
  if (blame_.worker() || phase_ != Phase::kRunning || why.empty()) return;
  job_end_ = why;
  Enter(Phase::kLingering, now);
}

bool RunState::only_restarted_are_alive() const {
  for (const Worker& worker : workers_) {
    if (!worker.end && worker.restarts == 0 && !worker.late) return false;
  }
  return some_are_through() && alive_ > 0;
}

bool RunState::deserted() const {
  return (hosts_change_ || drained_workers() > 0) && all_ended() && !blame_.worker() &&
         !some_are_through();
}

void RunState::Finish(absl::Time now) {
  if (phase_ != Phase::kRunning) return;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].end) losses_.without.push_back(static_cast<int32_t>(i));
  }
  signals_.push_back(SIGTERM);
  Enter(Phase::kTerminating, now);
}

void RunState::SignalReceived(int signal, absl::Time now) {
  if (!EndsTheRun(signal)) {
    signals_.push_back(signal);
    return;
  }
  if (interrupt_ != 0) {
    if (phase_ != Phase::kKilling) Enter(Phase::kKilling, now);
    return;
  }
  interrupt_ = signal;
  signals_.push_back(signal);
  const bool runs = phase_ == Phase::kRunning;
  if (runs || phase_ == Phase::kLingering) Enter(Phase::kTerminating, now);
  if (runs && drained_status_ && signal == SIGTERM) phase_end_ = now + patience_.drain;
}

bool RunState::has_drained() const {
  const auto left = [](const Worker& worker) {
    return worker.end && (worker.end->ok() || worker.ended_by_itself);
  };
  return drained_status_ && interrupt_ == SIGTERM && !blame_.worker() &&
         std::all_of(workers_.begin(), workers_.end(), left);
}

void RunState::Tick(absl::Time now) {
  if (now >= timeout_ && phase_ == Phase::kRunning) {
    timed_out_ = true;
    signals_.push_back(SIGTERM);
    Enter(Phase::kTerminating, now);
  }
  if (now >= hosts_by_) Enter(Phase::kLingering, now);  // none has come
  for (size_t i = 0; i < workers_.size(); ++i) {
    Terminate(static_cast<int32_t>(i), now);
    if (now < workers_[i].kill_at) continue;
    workers_[i].kill_at = absl::InfiniteFuture();
    single_signals_.emplace_back(static_cast<int32_t>(i), SIGKILL);
  }
  if (phase_ == Phase::kLingering) blame_.Tick(now);
  if (now < phase_end_) return;
  if (phase_ == Phase::kLingering) {
    signals_.push_back(SIGTERM);
    Enter(Phase::kTerminating, now);
  } else if (phase_ == Phase::kTerminating) {
    Enter(Phase::kKilling, now);
  }
}

absl::Time RunState::NextDeadline() const {
  if (phase_ == Phase::kRunning) {
    absl::Time next = std::min(timeout_, hosts_by_);
    for (const Worker& worker : workers_)
      next = std::min({next, worker.restart_at, worker.term_at, worker.kill_at});
    return next;
  }
  return std::min(phase_end_, blame_.NextDeadline());
}

std::vector<int> RunState::TakeSignals() { return std::exchange(signals_, {}); }

std::vector<std::pair<int32_t, int>> RunState::TakeSingleSignals() {
  return std::exchange(single_signals_, {});
}

int RunState::exit_status() const {
  if (blame_.worker()) {
    const Worker& worker = workers_[static_cast<size_t>(*blame_.worker())];
    // One that did not come to its end by itself has no status of its own.
    if (!worker.end || !worker.ended_by_itself) return 1;
    return std::max(worker.end->shell_status(), 1);
  }
  if (!job_end_.empty()) {
    const int32_t last = losses_.without.empty() ? -1 : losses_.without.back();
    const auto* end = last < 0 ? nullptr : &workers_[static_cast<size_t>(last)].end;
    return end != nullptr && end->has_value() ? std::max((*end)->shell_status(), 1) : 1;
  }
  if (timed_out_) return kTimeoutStatus;
  if (has_drained()) return *drained_status_;
  if (interrupt_ != 0) return 128 + interrupt_;
  if (coordinator_end_) return std::max(coordinator_end_->shell_status(), 1);
  return deserted() ? 1 : 0;
}

}  // namespace coordd
