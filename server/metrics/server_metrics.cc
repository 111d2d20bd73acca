#include "server/metrics/server_metrics.h"

#include <grpcpp/grpcpp.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "common/machine/process_metrics.h"
#include "common/protocol/proto_json.h"
#include "server/job/coordinator_state.h"
#include "server/metrics/label_values.h"
#include "server/metrics/metric_families.h"
#include "server/model/event_log.h"

namespace coordd {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;
using prometheus::Labels;

const char* DropName(ServerMetrics::Drop why) {
  return why == ServerMetrics::Drop::kOutboxFull ? "outbox_full"
         : why == ServerMetrics::Drop::kNoJoin   ? "no_join"
                                                 : "not_parsable";
}

const char* AuditLossName(ServerMetrics::AuditLoss why) {
  return why == ServerMetrics::AuditLoss::kQueueFull ? "queue_full" : "not_written";
}

// The stalled tensors are in order, the longest first. -1: no rank is missing.
double FirstMissingRank(const v1::JobState& job) {
  for (const v1::StalledTensor& tensor : job.stalled())
    if (!tensor.missing_ranks().empty()) return tensor.missing_ranks(0);
  return -1;
}

}  // namespace

void ServerMetrics::Families::Bear(const std::string& job) {
  for (v1::DepartureCause cause : DepartureCauses())
    JobCounter(departures, job, {{"cause", EnumeratorName(cause)}});
  for (v1::EventKind kind : JobEventKinds())
    JobCounter(events, job, {{"kind", EnumeratorName(kind)}});
  for (absl::StatusCode code : TensorFailureCodes())
    JobCounter(tensor_failures, job, {{"code", absl::StatusCodeToString(code)}});
  for (const char* gear : {"negotiated", "cached"}) JobCounter(reports, job, {{"gear", gear}});
  for (Family<Counter>* family : {&generations, &joins, &plans, &batches, &tensors, &bytes,
                                  &slots_forgotten, &stalls, &failures_reported}) {
    JobCounter(*family, job);
  }
}

void ServerMetrics::Families::BearOwn() {
  for (v1::EventKind kind : OwnEventKinds()) events.Add({{"kind", EnumeratorName(kind)}});
  for (absl::StatusCode code : JoinRefusalCodes())
    join_refusals.Add({{"code", absl::StatusCodeToString(code)}});
  for (const DeniedCall& denied : DeniableCalls()) {
    calls_denied.Add(
        {{"call", std::string(Name(denied.call))}, {"role", std::string(Name(denied.role))}});
  }
  for (Drop why : {Drop::kOutboxFull, Drop::kNoJoin, Drop::kNotParsable})
    sessions_dropped.Add({{"reason", DropName(why)}});
  for (AuditLoss why : {AuditLoss::kQueueFull, AuditLoss::kNotWritten})
    audit_entries_lost.Add({{"reason", AuditLossName(why)}});
  for (absl::StatusCode code : StateCommitCodes())
    state_commits.Add({{"code", absl::StatusCodeToString(code)}});
  for (absl::string_view method : StoreMethods()) {
    for (absl::StatusCode code : StoreCallCodes()) {
      store_calls.Add({{"method", std::string(method)}, {"code", absl::StatusCodeToString(code)}});
    }
  }
}

void ServerMetrics::Families::Happened(const Event& event) {
  const v1::EventKind kind = KindOf(event.kind);
  if (kind == v1::EVENT_KIND_UNSPECIFIED) return;
  Labels labels = {{"kind", EnumeratorName(kind)}};
  // The name in a refused join may be anything: no label.
  if (event.job.empty() || event.kind == Event::Kind::kJoinRefused) {
    events.Add(labels).Increment();
  } else {
    JobCounter(events, event.job, std::move(labels)).Increment();
  }
}

void ServerMetrics::Families::Plan(const Event& event) {
  JobCounter(plans, event.job).Increment();
  JobCounter(batches, event.job).Increment(static_cast<double>(event.batches));
  JobCounter(tensors, event.job).Increment(static_cast<double>(event.tensors));
  JobCounter(bytes, event.job).Increment(static_cast<double>(event.bytes));
  JobCounter(reports, event.job, {{"gear", "negotiated"}})
      .Increment(static_cast<double>(event.reported_by_spec));
  JobCounter(reports, event.job, {{"gear", "cached"}})
      .Increment(static_cast<double>(event.reported_by_slot));
  JobCounter(slots_forgotten, event.job).Increment(static_cast<double>(event.slots_forgotten));
  Histogram& histogram = ForJob(negotiation, event.job, {}, kNegotiationSeconds);
  for (absl::Duration waited : event.negotiation) histogram.Observe(absl::ToDoubleSeconds(waited));
}

void ServerMetrics::Families::SetJob(const v1::JobState& job) {
  SetJobGauge(members, job.name(), job.joined());
  SetJobGauge(generation, job.name(), static_cast<double>(job.generation()));
  SetJobGauge(generation_size, job.name(), job.size());
  SetJobGauge(pending, job.name(), static_cast<double>(job.pending_tensors()));
  SetJobGauge(stalled, job.name(), job.stalled_size());
  SetJobGauge(stall_missing_rank, job.name(), FirstMissingRank(job));
  SetJobGauge(process_sets, job.name(), static_cast<double>(job.process_sets()));
  SetJobGauge(pairs, job.name(), static_cast<double>(job.pairs()));
  SetJobGauge(joined_ranks, job.name(), job.joined_count());
  SetJobGauge(store_keys, job.name(), static_cast<double>(job.store_keys()));
  double lag = 0, with_xid = 0, throttled = 0, ecc_errors = 0;
  for (const v1::WorkerState& worker : job.workers()) {
    lag = std::max(lag, worker.arrival_lag_seconds());
    const v1::GpuHealth& gpu = worker.gpu_health();
    with_xid += gpu.last_xid() != 0 ? 1 : 0;
    throttled += gpu.throttle_reasons().empty() ? 0 : 1;
    ecc_errors += static_cast<double>(gpu.ecc_uncorrected());
  }
  SetJobGauge(gpu_xid_ranks, job.name(), with_xid);
  SetJobGauge(gpu_throttled_ranks, job.name(), throttled);
  SetJobGauge(gpu_ecc_errors, job.name(), ecc_errors);
  SetJobGauge(arrival_lag, job.name(), lag);
  SetJobGauge(slowest_rank, job.name(), job.slowest_rank());
}

// Twice missing, since events of a new job may come between a state and its arrival here.
void ServerMetrics::Families::ForgetJobsNotIn(const v1::ServerState& state) {
  std::set<std::string> present = {kOtherJobs};
  for (const v1::JobState& job : state.jobs()) present.insert(job.name());
  for (auto job = jobs.begin(); job != jobs.end();) {
    const bool missing = present.count(job->first) == 0;
    if (missing && job->second.was_missing) {
      for (const auto& [metric, remove] : job->second.series) remove();
      job = jobs.erase(job);
    } else {
      job->second.was_missing = missing;
      ++job;
    }
  }
}

ServerMetrics::ServerMetrics(prometheus::Registry& registry, absl::Time start)
    : registry_(registry),
      families_(std::make_unique<Families>(registry)),
      process_(std::make_unique<ProcessMetrics>(registry)) {
  families_->BearOwn();
  families_->build_info.Add({{"version", kVersion}, {"grpc", grpc::Version()}}).Set(1);
  families_->start_time.Add({}).Set(absl::ToDoubleSeconds(start - absl::UnixEpoch()));
}

ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::OnEvent(const Event& event) {
  Families& f = *families_;
  MutexLock lock(&f.mu);
  f.Happened(event);
  switch (event.kind) {
    case Event::Kind::kWorkerJoined:
      f.JobCounter(f.joins, event.job).Increment();
      break;
    case Event::Kind::kJoinRefused:
      f.join_refusals.Add({{"code", absl::StatusCodeToString(event.code)}}).Increment();
      break;
    case Event::Kind::kWorkerDeparted:
      f.JobCounter(f.departures, event.job, {{"cause", EnumeratorName(event.cause)}}).Increment();
      break;
    case Event::Kind::kGenerationFormed:
      f.JobCounter(f.generations, event.job).Increment();
      break;
    case Event::Kind::kTensorsPlanned:
      f.Plan(event);
      break;
    case Event::Kind::kTensorFailed:
      f.JobCounter(f.tensor_failures, event.job, {{"code", absl::StatusCodeToString(event.code)}})
          .Increment(static_cast<double>(std::max<int64_t>(event.tensors, 1)));
      break;
    case Event::Kind::kStallBegan:
      f.JobCounter(f.stalls, event.job)
          .Increment(static_cast<double>(std::max<int64_t>(event.tensors, 1)));
      break;
    case Event::Kind::kFailureReported:
      f.JobCounter(f.failures_reported, event.job).Increment();
      break;
    case Event::Kind::kProtocolError:
      f.protocol_errors.Increment();
      break;
    case Event::Kind::kStaleMessage:
      f.stale.Increment();
      break;
    case Event::Kind::kAsleep:
      f.asleep.Increment();
      break;
    case Event::Kind::kJobCreated:
    case Event::Kind::kJobEnded:
    case Event::Kind::kGenerationEnded:
    case Event::Kind::kStallEnded:
    case Event::Kind::kProcessSetChanged:
    case Event::Kind::kProcessSetRefused:
    case Event::Kind::kRankJoined:
    case Event::Kind::kJobRestored:
    case Event::Kind::kJobResumed:
    case Event::Kind::kNotStored:
    case Event::Kind::kScheduleBegan:
    case Event::Kind::kScheduleBroken:
    case Event::Kind::kTraced:
    case Event::Kind::kProcessEnded:
    case Event::Kind::kDrainBegan:
    case Event::Kind::kDrainLifted:
    case Event::Kind::kRankStuck:
    case Event::Kind::kStateLost:
      break;  // coordd_events_total is enough
  }
}

void ServerMetrics::OnTurn(absl::Duration took) {
  families_->turn.Observe(absl::ToDoubleSeconds(took));
}

void ServerMetrics::OnStateCommit(absl::StatusCode code, absl::Duration took) {
  families_->state_commits.Add({{"code", absl::StatusCodeToString(code)}}).Increment();
  families_->state_commit.Observe(absl::ToDoubleSeconds(took));
}
void ServerMetrics::SetStateWritable(bool writable) {
  families_->state_writable.Set(writable ? 1 : 0);
}

void ServerMetrics::ExpectConnectionRefused(const char* why) {
  families_->connections_refused.Add({{"reason", why}});
}
void ServerMetrics::OnConnectionRefused(const char* why) {
  families_->connections_refused.Add({{"reason", why}}).Increment();
}
void ServerMetrics::OnCallDenied(absl::string_view call, absl::string_view role) {
  families_->calls_denied.Add({{"call", std::string(call)}, {"role", std::string(role)}})
      .Increment();
}
void ServerMetrics::OnAuditEntriesLost(int64_t entries, AuditLoss why) {
  families_->audit_entries_lost.Add({{"reason", AuditLossName(why)}})
      .Increment(static_cast<double>(entries));
}
void ServerMetrics::SetCertificateEnd(absl::Time end) {
  families_->certificate_end.Add({}).Set(absl::ToDoubleSeconds(end - absl::UnixEpoch()));
}
void ServerMetrics::SetConnections(size_t open, size_t max) {
  families_->connections.Set(static_cast<double>(open));
  families_->connections_max.Set(static_cast<double>(max));
}

void ServerMetrics::AddSessions(int64_t delta) {
  families_->sessions.Increment(static_cast<double>(delta));
}
void ServerMetrics::AddNodeSessions(int64_t delta) {
  families_->node_sessions.Increment(static_cast<double>(delta));
}
void ServerMetrics::OnSessionDropped(Drop why) {
  families_->sessions_dropped.Add({{"reason", DropName(why)}}).Increment();
}
void ServerMetrics::OnMessageReceived() { families_->received.Increment(); }
void ServerMetrics::OnReadWithheld() { families_->withheld.Increment(); }
void ServerMetrics::OnMessageSent() { families_->sent.Increment(); }
void ServerMetrics::AddOutboxMessages(int64_t delta) {
  families_->outbox.Increment(static_cast<double>(delta));
}

void ServerMetrics::OnStoreCallStarted() { families_->store_waiting.Increment(); }
void ServerMetrics::OnStoreCallEnded(absl::string_view method, absl::StatusCode code) {
  families_->store_waiting.Decrement();
  families_->store_calls
      .Add({{"method", std::string(method)}, {"code", absl::StatusCodeToString(code)}})
      .Increment();
}
void ServerMetrics::ExpectHttpRequest(absl::string_view path, int status) {
  families_->http_requests.Add({{"path", std::string(path)}, {"status", absl::StrCat(status)}});
}
void ServerMetrics::OnHttpRequest(absl::string_view path, int status) {
  families_->http_requests.Add({{"path", std::string(path)}, {"status", absl::StrCat(status)}})
      .Increment();
}
void ServerMetrics::ExpectHttpRefused(absl::string_view why) {
  families_->http_refused.Add({{"reason", std::string(why)}});
}
void ServerMetrics::OnHttpRefused(absl::string_view why) {
  families_->http_refused.Add({{"reason", std::string(why)}}).Increment();
}

void ServerMetrics::SetState(const v1::ServerState& state) {
  Families& f = *families_;
  f.epoch.Add({}).Set(static_cast<double>(state.epoch()));
  std::map<v1::JobPhase, int> phases = {{v1::JOB_PHASE_GATHERING, 0},
                                        {v1::JOB_PHASE_RUNNING, 0},
                                        {v1::JOB_PHASE_BROKEN, 0},
                                        {v1::JOB_PHASE_ENDED, 0}};
  for (const v1::JobState& job : state.jobs()) ++phases[job.phase()];
  for (const auto& [phase, count] : phases)
    f.jobs_by_phase.Add({{"phase", EnumeratorName(phase)}}).Set(count);
  MutexLock lock(&f.mu);
  for (const v1::JobState& job : state.jobs()) f.SetJob(job);
  f.ForgetJobsNotIn(state);
}

void ServerMetrics::SetInboxMessages(size_t count) {
  families_->inbox.Set(static_cast<double>(count));
}

std::string ServerMetrics::Text() const {
  process_->Update();
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace coordd
