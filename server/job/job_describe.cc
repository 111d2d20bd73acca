// What a job is doing, and what operators see of it.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "server/job/job_state.h"

namespace coordd {
namespace {

constexpr size_t kMaxStalledShown =
    64;  // more than that nobody reads; the count is in pending_tensors

v1::JobPhase ToProto(RendezvousPhase phase) {
  switch (phase) {
    case RendezvousPhase::kGathering:
      return v1::JOB_PHASE_GATHERING;
    case RendezvousPhase::kFormed:
      return v1::JOB_PHASE_RUNNING;
    case RendezvousPhase::kBroken:
      return v1::JOB_PHASE_BROKEN;
    case RendezvousPhase::kEnded:
      return v1::JOB_PHASE_ENDED;
  }
  return v1::JOB_PHASE_UNSPECIFIED;
}

void AddStalled(const PendingTensor& tensor, absl::Time now, v1::StalledTensor* state) {
  state->set_name(tensor.name);
  state->set_process_set(ToInt(tensor.process_set));
  state->set_waiting_seconds(absl::ToDoubleSeconds(now - tensor.since));
  for (Rank rank : tensor.ready) state->add_ready_ranks(ToInt(rank));
  for (Rank rank : tensor.missing) state->add_missing_ranks(ToInt(rank));
  state->set_missing_count(tensor.missing_count);
  state->set_ready_count(tensor.ready_count);
}

const v1::LanePosition* HostLane(const v1::Heartbeat& heartbeat) {
  for (const v1::LanePosition& lane : heartbeat.lanes()) {
    if (lane.lane() == 0) return &lane;
  }
  return nullptr;
}

// The lane with the tensor that has waited longest; null: none waits.
const v1::LanePosition* WaitingLane(const v1::Heartbeat& heartbeat) {
  const v1::LanePosition* longest = nullptr;
  for (const v1::LanePosition& lane : heartbeat.lanes()) {
    if (lane.oldest_waiting().empty()) continue;
    if (longest == nullptr || FromProto(lane.waiting()) > FromProto(longest->waiting())) {
      longest = &lane;
    }
  }
  return longest;
}

}  // namespace

JobState::Stage JobState::stage() const {
  if (resume_.has_value()) return Stage::kReturning;
  const bool follows = reforming_.open();
  if (!generation_.has_value())
    return follows ? Stage::kFollowing : ended() ? Stage::kEnded : Stage::kGathering;
  if (generation_->intact()) return Stage::kNegotiating;
  return follows ? Stage::kReporting : Stage::kWindingUp;
}

void JobState::Describe(absl::Time now, v1::JobState* state) const {
  state->set_name(name_);
  state->set_phase(ended() ? v1::JOB_PHASE_ENDED : ToProto(rendezvous_.phase()));
  state->set_generation(ToInt(generation()));
  state->set_joined(static_cast<int32_t>(workers_.size()));
  state->set_min_workers(rendezvous_.options().min_workers);
  state->set_max_workers(rendezvous_.options().max_workers);
  state->set_seconds_in_phase(absl::ToDoubleSeconds(now - rendezvous_.phase_since()));
  state->set_store_keys(kv_.keys());
  state->set_slowest_rank(-1);
  state->set_none_follows(reforming_.none_follows());
  state->set_state_lost(reforming_.state_lost());
  for (const v1::Departure& departure : history_.departures) *state->add_departures() = departure;
  for (const std::string& node : drains_.closed_nodes()) state->add_drained_nodes(node);

  // Ranks in order, then those who wait.
  std::vector<std::pair<int64_t, SessionId>> order;
  double slowest = -1;
  for (const auto& [session, worker] : workers_) {
    const bool is_member = worker.generation != Generation{0};
    order.emplace_back(is_member ? ToInt(worker.place.rank) : int64_t{1} << 32, session);
    if (!is_member) continue;
    slowest = slowest < 0 ? worker.bytes_per_second : std::min(slowest, worker.bytes_per_second);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [rank, session] : order) {
    DescribeWorker(session, workers_.at(session), now, state->add_workers());
  }
  state->set_bytes_per_second(std::max(0.0, slowest));
  const ExecutedCounts::Count executed = ExecutedInGeneration();
  state->set_batches_total(history_.executed.before().batches + executed.batches);
  state->set_bytes_total(history_.executed.before().bytes + executed.bytes);
  if (resume_.has_value()) state->set_size(resume_->size());
  if (!generation_.has_value()) return;
  state->set_size(generation_->state().size());
  state->set_process_sets(generation_->state().process_sets());
  state->set_pairs(generation_->state().pairs());
  state->set_joined_count(generation_->state().joined().size());
  for (Rank rank : generation_->state().joined().FirstRanks(ReadinessTable::kMaxNamedRanks)) {
    state->add_joined_ranks(ToInt(rank));
  }
  state->set_pending_tensors(generation_->state().pending());
  state->set_batches_planned(generation_->state().batches_planned());
  state->set_schedules(generation_->state().schedules());
  state->set_tensors_planned(generation_->state().tensors_planned());
  state->set_bytes_planned(generation_->state().bytes_planned());
  for (const PendingTensor& tensor :
       generation_->state().Stalled(now, options_.stall_warning, kMaxStalledShown)) {
    AddStalled(tensor, now, state->add_stalled());
  }
  // In a stall those who are missing are what matters.
  if (negotiating() && state->stalled().empty())
    state->set_slowest_rank(generation_->state().slowest_rank());
}

void JobState::DescribeWorker(SessionId session, const Worker& worker, absl::Time now,
                              v1::WorkerState* state) const {
  const bool is_member = worker.generation != Generation{0};
  state->set_rank(is_member ? ToInt(worker.place.rank) : -1);
  state->set_local_rank(worker.place.local_rank);
  state->set_worker_id(worker.join.worker_id());
  state->set_hostname(worker.join.host().hostname());
  state->set_node_id(worker.join.host().node_id());
  state->set_pid(worker.join.pid());
  state->set_metrics_address(worker.join.metrics_address());
  *state->mutable_versions() = worker.join.versions();
  *state->mutable_devices() = worker.join.devices();
  state->set_seconds_since_heard(absl::ToDoubleSeconds(now - worker.last_heard));
  state->set_collectives_completed(worker.heartbeat.collectives_completed());
  state->set_bytes_reduced(worker.heartbeat.bytes_reduced());
  if (const v1::LanePosition* lane = HostLane(worker.heartbeat)) {
    state->set_launched(lane->launched());
    state->set_completed(lane->completed());
  }
  if (const v1::LanePosition* lane = WaitingLane(worker.heartbeat)) {
    state->set_oldest_waiting(lane->oldest_waiting());
    state->set_waiting_seconds(absl::ToDoubleSeconds(FromProto(lane->waiting())));
  }
  state->set_activity(Activity(worker));
  state->set_launch(worker.join.launch());
  if (worker.device_use.has_value()) *state->mutable_device_use() = *worker.device_use;
  if (worker.heartbeat.has_gpu_health())
    *state->mutable_gpu_health() = worker.heartbeat.gpu_health();
  state->set_stack(worker.stack);
  if (const Drain* drain = drains_.Find(worker.join.worker_id())) {
    const absl::Duration left = drain->has_begun() ? drain->until - now : drain->grace;
    state->set_activity(absl::StrCat("asked to leave within ",
                                     absl::FormatDuration(absl::Trunc(left, absl::Seconds(1))),
                                     "; ", state->activity()));
    state->set_draining(true);
    state->set_drain_seconds(std::max(0.0, absl::ToDoubleSeconds(left)));
    state->set_drain_asked_by(drain->asked_by);
  }
  if (!is_member || !generation_.has_value()) return;
  state->set_arrival_lag_seconds(
      absl::ToDoubleSeconds(generation_->state().ArrivalLag(worker.place.rank)));
}

std::string JobState::Activity(const Worker& worker) const {
  if (worker.generation == Generation{0}) return "waiting for a generation";
  if (resume_.has_value()) return "back, waiting for the other ranks";
  if (damage() != Damage::kNone) return "winding up";
  if (const v1::LanePosition* lane = WaitingLane(worker.heartbeat)) {
    const auto pending = generation_->state().Find(worker.place.rank, ProcessSetId{lane->lane()},
                                                   lane->oldest_waiting());
    if (pending.has_value()) {
      return absl::StrCat("waiting for ", pending->name, " (",
                          RanksString(pending->missing, pending->missing_count), " missing)");
    }
  }
  for (const v1::LanePosition& lane : worker.heartbeat.lanes()) {
    if (lane.launched() > lane.completed()) return "executing";
  }
  return generation_->state().joined().Contains(worker.place.rank) ? "joined: has no more data"
                                                                   : "idle";
}

absl::Status JobState::CheckStage() const {
  const Stage is = stage();
  const RendezvousPhase phase = rendezvous_.phase();
  const bool has_generation =
      is == Stage::kNegotiating || is == Stage::kReporting || is == Stage::kWindingUp;
  if (has_generation != generation_.has_value())
    return absl::InternalError("a generation whose members come back has begun");
  if ((is == Stage::kReporting || is == Stage::kFollowing) != reforming_.open())
    return absl::InternalError("a generation is to follow one that is not over");
  if ((is == Stage::kNegotiating) != (phase == RendezvousPhase::kFormed))
    return absl::InternalError("damage and phase differ");
  const bool over = is == Stage::kReporting || is == Stage::kWindingUp;
  if (over != (phase == RendezvousPhase::kBroken))
    return absl::InternalError("a generation that is over, and phase differ");
  return absl::OkStatus();
}

absl::Status JobState::CheckConsistency() const {
  COORDD_RETURN_IF_ERROR(rendezvous_.CheckConsistency());
  COORDD_RETURN_IF_ERROR(kv_.CheckConsistency());
  int32_t waiting = 0;
  int32_t members = 0;
  for (const auto& [session, worker] : workers_) {
    if (worker.generation == Generation{0}) {
      ++waiting;
      continue;
    }
    ++members;
    if (resume_.has_value()) {
      if (resume_->session_of(worker.place.rank) == session) continue;
      return absl::InternalError(
          absl::StrCat("worker ", worker.join.worker_id(), " has not come back"));
    }
    if (worker.generation != generation() || !generation_.has_value() ||
        generation_->state().session_of(worker.place.rank) != session) {
      return absl::InternalError(
          absl::StrCat("worker ", worker.join.worker_id(), " is in the wrong place"));
    }
  }
  const int32_t formed = rendezvous_.members() + (resume_.has_value() ? resume_->back() : 0);
  if (waiting != rendezvous_.waiting() || members != formed) {
    return absl::InternalError("rendezvous and workers differ");
  }
  COORDD_RETURN_IF_ERROR(CheckStage());
  const bool counted = negotiating() || reforming_.open() || resume_.has_value();
  const size_t admitted = static_cast<size_t>(waiting + (counted ? members : 0));
  if (workers_.counted() != admitted) return absl::InternalError("admission is out of date");
  if (generation_.has_value()) COORDD_RETURN_IF_ERROR(generation_->state().CheckConsistency());
  return absl::OkStatus();
}

}  // namespace coordd
