#include "server/job/job_view.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"

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
  state->set_on_devices(tensor.on_devices);
}

std::string Activity(const JobView& job, const JobWorker& worker) {
  if (worker.generation == Generation{0}) return "waiting for a generation";
  if (job.resume != nullptr) return "back, waiting for the other ranks";
  if (StageOf(job) != JobStage::kNegotiating) return "winding up";
  if (const auto& waiting = worker.progress.waiting) {
    const auto pending =
        job.generation->state().Find(worker.place.rank, waiting->process_set, waiting->tensor);
    if (pending.has_value()) {
      return absl::StrCat("waiting for ", pending->name, " (",
                          RanksString(pending->missing, pending->missing_count), " missing)");
    }
  }
  if (const auto call = job.generation->state().CommWaitOf(worker.place.rank)) {
    return absl::StrCat(
        "waiting in ", call->name,
        call->missing_count == 0
            ? ""
            : absl::StrCat(" (", RanksString(call->missing, call->missing_count), " missing)"));
  }
  if (std::string stand = job.generation->state().DeviceStandOf(worker.place.rank); !stand.empty())
    return stand;
  if (worker.progress.executes) return "executing";
  return job.generation->state().joined().Contains(worker.place.rank) ? "joined: has no more data"
                                                                      : "idle";
}

void DescribeDrain(const Drain& drain, absl::Time now, v1::WorkerState* state) {
  const absl::Duration left = drain.has_begun() ? drain.until - now : drain.grace;
  state->set_activity(absl::StrCat("asked to leave within ",
                                   absl::FormatDuration(absl::Trunc(left, absl::Seconds(1))), "; ",
                                   state->activity()));
  state->set_draining(true);
  state->set_drain_seconds(std::max(0.0, absl::ToDoubleSeconds(left)));
  state->set_drain_asked_by(drain.asked_by);
}

void DescribeWorker(const JobView& job, const JobWorker& worker, absl::Time now,
                    v1::WorkerState* state) {
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
  state->set_collectives_completed(worker.progress.collectives_completed);
  state->set_bytes_reduced(worker.progress.bytes_reduced);
  if (const auto& batches = worker.progress.of_all_ranks) {
    state->set_launched(batches->launched);
    state->set_completed(batches->completed);
  }
  if (const auto& waiting = worker.progress.waiting) {
    state->set_oldest_waiting(waiting->tensor);
    state->set_waiting_seconds(absl::ToDoubleSeconds(waiting->since));
  }
  state->set_activity(Activity(job, worker));
  state->set_launch(worker.join.launch());
  if (worker.device_use != nullptr) *state->mutable_device_use() = *worker.device_use;
  if (worker.host_edges != nullptr) *state->mutable_host_edges() = *worker.host_edges;
  if (worker.gpu_health.ByteSizeLong() > 0) *state->mutable_gpu_health() = worker.gpu_health;
  state->set_stack(worker.stack);
  if (const Drain* drain = job.drains.Find(worker.join.worker_id()))
    DescribeDrain(*drain, now, state);
  if (!is_member || job.generation == nullptr) return;
  state->set_arrival_lag_seconds(
      absl::ToDoubleSeconds(job.generation->state().ArrivalLag(worker.place.rank)));
}

// What its generation negotiates.
void DescribeGeneration(const JobView& job, absl::Time now, v1::JobState* state) {
  const GenerationState& generation = job.generation->state();
  state->set_size(generation.size());
  state->set_process_sets(generation.process_sets());
  state->set_pairs(generation.pairs());
  state->set_joined_count(generation.joined().size());
  for (Rank rank : generation.joined().FirstRanks(ReadinessTable::kMaxNamedRanks)) {
    state->add_joined_ranks(ToInt(rank));
  }
  state->set_pending_tensors(generation.pending());
  state->set_batches_planned(generation.batches_planned());
  state->set_schedules(generation.schedules());
  state->set_tensors_planned(generation.tensors_planned());
  state->set_bytes_planned(generation.bytes_planned());
  for (const PendingTensor& tensor :
       generation.Stalled(now, job.options.stall_warning, kMaxStalledShown)) {
    AddStalled(tensor, now, state->add_stalled());
  }
  // In a stall those who are missing are what matters.
  if (job.generation->intact() && state->stalled().empty())
    state->set_slowest_rank(generation.slowest_rank());
}

absl::Status CheckStage(const JobView& job) {
  const JobStage is = StageOf(job);
  const RendezvousPhase phase = job.rendezvous.phase();
  const bool has_generation =
      is == JobStage::kNegotiating || is == JobStage::kReporting || is == JobStage::kWindingUp;
  if (has_generation != (job.generation != nullptr))
    return absl::InternalError("a generation whose members come back has begun");
  if ((is == JobStage::kReporting || is == JobStage::kFollowing) != job.reforming.open())
    return absl::InternalError("a generation is to follow one that is not over");
  if ((is == JobStage::kNegotiating) != (phase == RendezvousPhase::kFormed))
    return absl::InternalError("damage and phase differ");
  const bool over = is == JobStage::kReporting || is == JobStage::kWindingUp;
  if (over != (phase == RendezvousPhase::kBroken))
    return absl::InternalError("a generation that is over, and phase differ");
  return absl::OkStatus();
}

}  // namespace

JobStage StageOf(const JobView& job) {
  if (job.resume != nullptr) return JobStage::kReturning;
  const bool follows = job.reforming.open();
  if (job.generation == nullptr) {
    return follows ? JobStage::kFollowing : job.ended() ? JobStage::kEnded : JobStage::kGathering;
  }
  if (job.generation->intact()) return JobStage::kNegotiating;
  return follows ? JobStage::kReporting : JobStage::kWindingUp;
}

ExecutedCounts::Count ExecutedBy(const JobView& job) {
  const ExecutedCounts& counts = job.history.executed();
  ExecutedCounts::Count all = counts.before();
  if (job.generation == nullptr) return all;
  const ExecutedCounts::Count here = counts.InGeneration(job.generation->planned());
  all.batches += here.batches;
  all.bytes += here.bytes;
  return all;
}

void Describe(const JobView& job, absl::Time now, v1::JobState* state) {
  state->set_name(job.name);
  state->set_phase(job.ended() ? v1::JOB_PHASE_ENDED : ToProto(job.rendezvous.phase()));
  state->set_generation(ToInt(job.rendezvous.generation()));
  state->set_joined(static_cast<int32_t>(job.workers.size()));
  state->set_min_workers(job.rendezvous.options().min_workers);
  state->set_max_workers(job.rendezvous.options().max_workers);
  state->set_seconds_in_phase(absl::ToDoubleSeconds(now - job.rendezvous.phase_since()));
  state->set_store_keys(job.kv.keys());
  state->set_slowest_rank(-1);
  state->set_none_follows(job.reforming.none_follows());
  state->set_state_lost(job.reforming.state_lost());
  for (const v1::Departure& departure : job.history.departures())
    *state->add_departures() = departure;
  for (const std::string& node : job.drains.closed_nodes()) state->add_drained_nodes(node);

  // Ranks in order, then those who wait.
  std::vector<std::pair<int64_t, SessionId>> order;
  double slowest = -1;
  for (const auto& [session, worker] : job.workers) {
    const bool is_member = worker.generation != Generation{0};
    order.emplace_back(is_member ? ToInt(worker.place.rank) : int64_t{1} << 32, session);
    if (!is_member) continue;
    slowest = slowest < 0 ? worker.bytes_per_second : std::min(slowest, worker.bytes_per_second);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [rank, session] : order) {
    DescribeWorker(job, job.workers.at(session), now, state->add_workers());
  }
  state->set_bytes_per_second(std::max(0.0, slowest));
  const ExecutedCounts::Count executed = ExecutedBy(job);
  state->set_batches_total(executed.batches);
  state->set_bytes_total(executed.bytes);
  if (job.resume != nullptr) state->set_size(job.resume->size());
  if (job.generation != nullptr) DescribeGeneration(job, now, state);
}

absl::Status CheckConsistency(const JobView& job) {
  COORDD_RETURN_IF_ERROR(job.rendezvous.CheckConsistency());
  COORDD_RETURN_IF_ERROR(job.kv.CheckConsistency());
  int32_t waiting = 0;
  int32_t members = 0;
  for (const auto& [session, worker] : job.workers) {
    if (worker.generation == Generation{0}) {
      ++waiting;
      continue;
    }
    ++members;
    if (job.resume != nullptr) {
      if (job.resume->session_of(worker.place.rank) == session) continue;
      return absl::InternalError(
          absl::StrCat("worker ", worker.join.worker_id(), " has not come back"));
    }
    if (worker.generation != job.rendezvous.generation() || job.generation == nullptr ||
        job.generation->state().session_of(worker.place.rank) != session) {
      return absl::InternalError(
          absl::StrCat("worker ", worker.join.worker_id(), " is in the wrong place"));
    }
  }
  const int32_t formed =
      job.rendezvous.members() + (job.resume != nullptr ? job.resume->back() : 0);
  if (waiting != job.rendezvous.waiting() || members != formed) {
    return absl::InternalError("rendezvous and workers differ");
  }
  COORDD_RETURN_IF_ERROR(CheckStage(job));
  const JobStage is = StageOf(job);
  const bool counted =
      is != JobStage::kEnded && is != JobStage::kGathering && is != JobStage::kWindingUp;
  const size_t admitted = static_cast<size_t>(waiting + (counted ? members : 0));
  if (job.workers.counted() != admitted) return absl::InternalError("admission is out of date");
  if (job.generation != nullptr) COORDD_RETURN_IF_ERROR(job.generation->state().CheckConsistency());
  return absl::OkStatus();
}

}  // namespace coordd
