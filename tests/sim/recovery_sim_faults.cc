// coordd dies and is started again on what it had stored: what has been sent arrives up to a point
// that differs from worker to worker.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/job_record.h"
#include "tests/server/builders.h"
#include "tests/sim/recovery_sim.h"

namespace coordd {

absl::Status RecoverySim::StartCoordd() {
  COORDD_ASSIGN_OR_RETURN(RestoredState restored, ParseRecords({"c0ffee", Epoch{++epoch_}, disk_}));
  if (options_.bug == RecoveryBug::kPlanIsNotStored) {
    for (auto& [name, record] : restored.jobs) record.clear_repairs();
  }
  if (options_.bug == RecoveryBug::kDrainNotStored) restored.drains.clear();
  Effects effects;
  coordd_ = std::make_unique<CoordinatorState>(server_, restored, now_, effects);
  history_.SawRestart();
  return TakeCoordd(effects);
}

absl::Status RecoverySim::Crash() {
  --crashes_left_;
  coordd_.reset();
  broken_.clear();
  for (WorkerModel& worker : workers_) {
    BreakStream(worker);
    worker.closed.reset();
  }
  return absl::OkStatus();
}

// For long enough that it forgives. Some have lost patience by the time at which it wakes up; what
// has not arrived by then is lost. Between two generations members have to be patient.
void RecoverySim::Doze() {
  v1::ServerState state;
  coordd_->Describe("train", now_, &state);
  if (state.jobs_size() != 1 || state.jobs(0).phase() != v1::JOB_PHASE_RUNNING) return;
  --dozes_left_;
  now_ += server_.lease;
  for (WorkerModel& worker : workers_) {
    if (!worker.alive || ToInt(worker.session) == 0 || random_.Below(3) == 0) continue;
    broken_.push_back(worker.session);
    BreakStream(worker);
  }
}

void RecoverySim::BreakStream(WorkerModel& worker) {
  worker.to_coordd.clear();
  const uint64_t arrives = random_.Below(worker.from_coordd.size() + 1);
  while (worker.from_coordd.size() > arrives) worker.from_coordd.pop_back();
  worker.ends = worker.ends || ToInt(worker.session) != 0;
  worker.session = SessionId{};
}

absl::Status RecoverySim::HearOfEnd() {
  const size_t at = random_.Below(broken_.size());
  const Inbound in = SessionEnded{broken_[at], "reset"};
  broken_.erase(broken_.begin() + static_cast<int64_t>(at));
  history_.Saw(in);
  Effects effects;
  coordd_->Step(in, now_, effects);
  return TakeCoordd(effects);
}

// The disk is quick. What it stores last before coordd dies may not have been announced.
absl::Status RecoverySim::Store(const Effects& effects) {
  for (const Persist& persist : effects.persist) {
    for (const StateWrite& write : persist.writes) {
      if (write.value.has_value()) {
        disk_[write.key] = *write.value;
      } else {
        disk_.erase(write.key);
      }
    }
    if (persist.generation == Generation{0} && persist.call == CallId{0}) continue;
    if (persist.generation != Generation{0}) epoch_of_[ToInt(persist.generation)] = epoch_;
    const Inbound persisted(Persisted{persist.job, persist.generation, {}, persist.call});
    history_.Saw(persisted);
    if (crashes_left_ > 0 && random_.Below(4) == 0) return Crash();
    Effects more;
    coordd_->Step(persisted, now_, more);
    COORDD_RETURN_IF_ERROR(TakeCoordd(more));
  }
  return absl::OkStatus();
}

absl::Status RecoverySim::OnClosed(const CloseSession& close) {
  WorkerModel& worker = workers_[static_cast<size_t>(worker_of_.at(close.session))];
  if (absl::IsUnavailable(close.status) && options_.dozes > 0) {
    if (suspended_at_ != now_) ++suspended_;
    suspended_at_ = now_;
    if (worker.session == close.session) BreakStream(worker);
    return absl::OkStatus();
  }
  if (!worker.alive || worker.session != close.session) return absl::OkStatus();
  if (worker.leaves && close.status.ok()) {
    worker.ends = true;
    worker.closed = close.status;
    worker.to_coordd.clear();
    worker.session = SessionId{};
    return absl::OkStatus();
  }
  if (worker.may_be_evicted) {
    ++evicted_;
    End(worker);
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("a session is closed: ", close.status.ToString()));
}

// Its process has ended.
void RecoverySim::End(WorkerModel& worker) {
  worker.alive = false;
  worker.from_coordd.clear();
  worker.to_coordd.clear();
  if (ToInt(worker.session) != 0) worker.to_coordd.push_back(std::nullopt);
}

// A rank of the newest generation; sometimes its own process asks for it.
absl::Status RecoverySim::Dismiss(bool evict) {
  std::vector<std::pair<int32_t, int32_t>> staying;  // worker, rank
  for (const auto& [w, rank] : members_.rbegin()->second) {
    const WorkerModel& worker = workers_[static_cast<size_t>(w)];
    if (worker.alive && !worker.is_to_leave && !worker.leaves) staying.emplace_back(w, rank);
  }
  if (staying.size() < 2 || coordd_ == nullptr) return absl::OkStatus();
  const auto [w, rank] = staying[random_.Below(staying.size())];
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  --(evict ? evictions_left_ : drains_left_);
  worker.may_be_evicted = true;
  constexpr int64_t kGraceMs[] = {20, 1000, 30000};
  const absl::Duration grace = absl::Milliseconds(kGraceMs[random_.Below(3)]);
  if (!evict && worker.state != nullptr && random_.Below(3) == 0)
    return Turn(w, DrainAsked{now_ + grace, "SIGTERM"});
  DismissCall call{CallId{++last_call_}, {}};
  call.request.set_action(evict ? v1::DISMISS_ACTION_EVICT : v1::DISMISS_ACTION_DRAIN);
  call.request.set_rank(rank);
  call.request.set_force(true);
  call.request.set_grace_seconds(absl::ToDoubleSeconds(grace));
  if (!evict) drain_calls_[call.call] = w;
  history_.Saw(Inbound(call));
  Effects effects;
  coordd_->Step(call, now_, effects);
  return TakeCoordd(effects);
}

v1::Join RecoverySim::JoinFor(int32_t w) const {
  v1::Join join = JoinOf(absl::StrCat("w", w));
  join.set_launcher_rank(w);
  join.set_executes_schedules(true);
  join.set_drains(true);
  join.set_on_failure(v1::ON_FAILURE_CONTINUE);
  join.mutable_limits()->set_min_workers(1);
  join.mutable_limits()->set_max_workers(options_.workers);
  return join;
}

void RecoverySim::OpenStream(int32_t w, int64_t stream) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  worker.to_coordd.clear();
  worker.from_coordd.clear();
  worker.sequence = 0;
  worker.closed.reset();
  worker.stream = stream;
  worker.session = SessionId{};
  worker.ends = coordd_ == nullptr;  // nobody listens
  if (worker.ends) return;
  worker.session = SessionId{++last_session_};
  worker_of_[worker.session] = w;
}

void RecoverySim::SendJoin(int32_t w) {
  OpenStream(w, 0);
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  if (ToInt(worker.session) == 0) return;
  v1::WorkerMessage message;
  *message.mutable_join() = JoinFor(w);
  worker.to_coordd.emplace_back(std::move(message));
}

absl::Status RecoverySim::EndStream(int32_t w) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  worker.ends = false;
  if (worker.state == nullptr) {
    SendJoin(w);  // it has not heard of a generation: it joins again
    return absl::OkStatus();
  }
  const auto closed = std::exchange(worker.closed, std::nullopt);
  return Turn(
      w, StreamEnded{closed.value_or(absl::UnavailableError("the stream broke")), worker.stream});
}

}  // namespace coordd
