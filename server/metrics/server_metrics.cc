#include "server/metrics/server_metrics.h"

#include <grpcpp/grpcpp.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/version.h"
#include "common/protocol/proto_json.h"
#include "server/job/coordinator_state.h"
#include "server/model/event_log.h"

namespace coordd {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;

// Twice the jobs that coordd remembers by default; the rest share one series.
constexpr size_t kMaxJobSeries = 2048;
constexpr char kOtherJobs[] = "(others)";
// Not "job": Prometheus puts the name of the scrape configuration there and would rename ours.
constexpr char kJobLabel[] = "job_name";

const Histogram::BucketBoundaries kNegotiationSeconds = {
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
    0.05,   0.1,     0.25,   0.5,   1,      2.5,   10,   60};
const Histogram::BucketBoundaries kStateCommitSeconds = {0.0001, 0.001, 0.003, 0.01, 0.03, 0.1,
                                                         0.3,    1,     3,     10,   60};
const Histogram::BucketBoundaries kTurnSeconds = {0.00001, 0.0001, 0.001, 0.01, 0.1, 1};

Family<Counter>& NewCounter(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}
Family<Gauge>& NewGauge(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}
Family<Histogram>& NewHistogram(prometheus::Registry& registry, const char* name,
                                const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

}  // namespace

struct ServerMetrics::Families {
  explicit Families(prometheus::Registry& r) : registry(r) {}

  // The series of `family` for one job; forgotten with the job.
  template <typename T, typename... Args>
  T& ForJob(Family<T>& family, const std::string& job, Labels labels, const Args&... args)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const bool known = jobs.count(job) != 0 || jobs.size() < kMaxJobSeries;
    const std::string& name = known ? job : kOtherJobs;
    labels[kJobLabel] = name;
    T& metric = family.Add(labels, args...);
    jobs[name].series.emplace(&metric, [&family, &metric] { family.Remove(&metric); });
    return metric;
  }
  Counter& JobCounter(Family<Counter>& family, const std::string& job, Labels labels = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return ForJob(family, job, std::move(labels));
  }
  void SetJobGauge(Family<Gauge>& family, const std::string& job, double value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    ForJob(family, job, {}).Set(value);
  }

  void Happened(const Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Plan(const Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void SetJob(const v1::JobState& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void ForgetJobsNotIn(const v1::ServerState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  prometheus::Registry& registry;

  // Thread-safe by itself. Of the process.
  Family<Gauge>& build_info = NewGauge(registry, "coordd_build_info",
                                       "Always 1; the labels say which coordd and gRPC this is.");
  Family<Gauge>& start_time = NewGauge(registry, "coordd_start_time_seconds",
                                       "When this coordd started, in seconds since 1970.");
  Family<Gauge>& epoch = NewGauge(registry, "coordd_epoch", "The coordinator's incarnation.");

  // Of jobs.
  Family<Gauge>& jobs_by_phase = NewGauge(registry, "coordd_jobs", "Jobs by phase.");
  Family<Gauge>& members =
      NewGauge(registry, "coordd_members", "Connected workers, members or waiting.");
  Family<Gauge>& generation =
      NewGauge(registry, "coordd_generation", "Number of the job's latest generation.");
  Family<Gauge>& generation_size =
      NewGauge(registry, "coordd_generation_size", "Ranks of the job's latest generation.");
  Family<Counter>& events =
      NewCounter(registry, "coordd_events_total", "Events that operators see, by kind.");
  Family<Counter>& generations =
      NewCounter(registry, "coordd_generations_total", "Generations formed.");
  Family<Counter>& joins = NewCounter(registry, "coordd_joins_total", "Workers that joined.");
  Family<Counter>& join_refusals = NewCounter(registry, "coordd_join_refusals_total",
                                              "Joins that were refused, by status code.");
  Family<Counter>& departures =
      NewCounter(registry, "coordd_departures_total", "Members that are gone, by cause.");

  // Of tensors.
  Family<Histogram>& negotiation =
      NewHistogram(registry, "coordd_negotiation_seconds",
                   "From a tensor's first report by a rank to its plan.");
  Family<Counter>& plans = NewCounter(registry, "coordd_plans_total", "Plans sent.");
  Family<Counter>& batches =
      NewCounter(registry, "coordd_batches_planned_total", "Fused batches in those plans.");
  Family<Counter>& tensors =
      NewCounter(registry, "coordd_tensors_planned_total", "Tensors in those batches.");
  Family<Counter>& bytes = NewCounter(registry, "coordd_bytes_planned_total",
                                      "Payload bytes of one rank in those batches.");
  Family<Counter>& reports =
      NewCounter(registry, "coordd_reports_total", "Tensors that ranks have reported, by gear.");
  Family<Counter>& slots_forgotten = NewCounter(registry, "coordd_slots_forgotten_total",
                                                "Slots of tensors that had to make room.");
  Family<Counter>& tensor_failures =
      NewCounter(registry, "coordd_tensor_failures_total",
                 "Tensors that every rank got an error for, by status code.");
  Family<Counter>& stalls =
      NewCounter(registry, "coordd_stalls_total",
                 "Tensors, joins and requests for process sets that began to stall.");
  Family<Gauge>& pending = NewGauge(registry, "coordd_pending_tensors",
                                    "Tensors that some ranks have submitted and others have not.");
  Family<Gauge>& stalled = NewGauge(registry, "coordd_stalled_tensors",
                                    "Pending tensors that are older than the stall warning.");
  Family<Gauge>& process_sets =
      NewGauge(registry, "coordd_process_sets",
               "Process sets that the job's ranks asked for, beside the one of all ranks.");
  Family<Gauge>& pairs =
      NewGauge(registry, "coordd_process_set_pairs", "Pairs of ranks that have sent or received.");
  Family<Gauge>& joined_ranks =
      NewGauge(registry, "coordd_joined_ranks", "Ranks that have joined: they have no more data.");
  Family<Gauge>& arrival_lag =
      NewGauge(registry, "coordd_arrival_lag_seconds_max",
               "Mean delay of the job's slowest rank behind its first one.");
  Family<Gauge>& slowest_rank =
      NewGauge(registry, "coordd_slowest_rank", "The rank that the others wait for; -1: none.");
  // Of GPUs, as their ranks have last told.
  Family<Gauge>& gpu_xid_ranks =
      NewGauge(registry, "coordd_gpu_xid_ranks",
               "Ranks whose GPU's driver has reported an error (XID) since they came.");
  Family<Gauge>& gpu_throttled_ranks =
      NewGauge(registry, "coordd_gpu_throttled_ranks", "Ranks whose GPU's clocks are kept down.");
  Family<Gauge>& gpu_ecc_errors = NewGauge(
      registry, "coordd_gpu_ecc_uncorrected_errors",
      "Uncorrected errors in the memory of the ranks' GPUs, since their drivers were loaded.");
  Family<Gauge>& store_keys = NewGauge(registry, "coordd_store_keys", "Keys in the job's store.");

  // Of the machinery.
  // Of the port.
  Family<Gauge>& connections_family =
      NewGauge(registry, "coordd_connections",
               "Connections to the gRPC port that were let in and are open.");
  Family<Gauge>& connections_max_family =
      NewGauge(registry, "coordd_connections_max", "As many as may be open.");
  Family<Counter>& connections_refused = NewCounter(registry, "coordd_connections_refused_total",
                                                    "Connections that were not let in, by reason.");
  Family<Counter>& calls_denied =
      NewCounter(registry, "coordd_calls_denied_total",
                 "Calls that the caller's role does not allow, by call and role.");
  Family<Gauge>& certificate_end =
      NewGauge(registry, "coordd_certificate_end_seconds",
               "When the first of coordd's own certificates ends, in seconds since 1970.");

  Family<Gauge>& sessions_family = NewGauge(registry, "coordd_sessions", "Open worker streams.");
  Family<Gauge>& node_sessions_family = NewGauge(
      registry, "coordd_node_sessions", "Open streams of relays, one for a node's workers.");
  Family<Counter>& sessions_dropped = NewCounter(registry, "coordd_sessions_dropped_total",
                                                 "Streams that coordd ended, by reason.");
  Family<Counter>& received_family =
      NewCounter(registry, "coordd_messages_received_total", "Messages from workers.");
  Family<Counter>& sent_family =
      NewCounter(registry, "coordd_messages_sent_total", "Messages to workers.");
  Family<Counter>& stale_family =
      NewCounter(registry, "coordd_stale_messages_total",
                 "Messages of an older generation or epoch, refused by number.");
  Family<Counter>& protocol_errors_family =
      NewCounter(registry, "coordd_protocol_errors_total", "Messages that the protocol forbids.");
  Family<Gauge>& inbox_family =
      NewGauge(registry, "coordd_inbox_messages", "Messages that wait for the coordinator thread.");
  Family<Counter>& withheld_family =
      NewCounter(registry, "coordd_reads_withheld_total",
                 "Times a stream was not read from because the inbox was full.");
  Family<Gauge>& outbox_family = NewGauge(registry, "coordd_outbox_messages",
                                          "Messages that wait for slow workers, all streams.");
  Family<Histogram>& turn_family =
      NewHistogram(registry, "coordd_turn_seconds", "Turns of the coordinator thread.");
  Family<Counter>& state_commits =
      NewCounter(registry, "coordd_state_commits_total",
                 "Writes to the state that outlives coordd, by status code.");
  Family<Histogram>& state_commit_family =
      NewHistogram(registry, "coordd_state_commit_seconds",
                   "From the start of such a write until it is durable.");
  Family<Gauge>& state_writable_family =
      NewGauge(registry, "coordd_state_writable", "1 when the last such write went well, else 0.");
  Gauge& standby =  // of one that leads: 0
      NewGauge(registry, "coordd_standby", "1 while this coordd stands by for another one, else 0.")
          .Add({});
  Family<Counter>& asleep_family =
      NewCounter(registry, "coordd_asleep_total",
                 "Times coordd itself did not run for a while and gave leases grace.");
  Family<Counter>& store_calls =
      NewCounter(registry, "coordd_store_calls_total", "Ended calls of the key-value service.");
  Family<Gauge>& store_waiting_family =
      NewGauge(registry, "coordd_store_calls_waiting", "Calls of it that are not answered yet.");
  Family<Counter>& http_requests =
      NewCounter(registry, "coordd_http_requests_total", "HTTP requests by path and status.");

  // Those without labels, looked up once.
  Gauge& connections = connections_family.Add({});
  Gauge& connections_max = connections_max_family.Add({});
  Gauge& sessions = sessions_family.Add({});
  Gauge& node_sessions = node_sessions_family.Add({});
  Counter& received = received_family.Add({});
  Counter& sent = sent_family.Add({});
  Counter& stale = stale_family.Add({});
  Counter& protocol_errors = protocol_errors_family.Add({});
  Gauge& inbox = inbox_family.Add({});
  Counter& withheld = withheld_family.Add({});
  Gauge& outbox = outbox_family.Add({});
  Histogram& turn = turn_family.Add({}, kTurnSeconds);
  Histogram& state_commit = state_commit_family.Add({}, kStateCommitSeconds);
  Gauge& state_writable = state_writable_family.Add({});
  Counter& asleep = asleep_family.Add({});
  Gauge& store_waiting = store_waiting_family.Add({});

  // Guarded by mu.
  struct JobSeries {
    std::map<const void*, std::function<void()>> series;  // each with how it is removed
    bool was_missing = false;                             // from the last state
  };
  Mutex mu;
  std::map<std::string, JobSeries> jobs ABSL_GUARDED_BY(mu);
};

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
    : registry_(registry), families_(std::make_unique<Families>(registry)) {
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

void ServerMetrics::OnConnectionRefused(const char* why) {
  families_->connections_refused.Add({{"reason", why}}).Increment();
}
void ServerMetrics::OnCallDenied(absl::string_view call, absl::string_view role) {
  families_->calls_denied.Add({{"call", std::string(call)}, {"role", std::string(role)}})
      .Increment();
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
  const char* reason = why == Drop::kOutboxFull ? "outbox_full"
                       : why == Drop::kNoJoin   ? "no_join"
                                                : "not_parsable";
  families_->sessions_dropped.Add({{"reason", reason}}).Increment();
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
void ServerMetrics::OnHttpRequest(absl::string_view path, int status) {
  families_->http_requests.Add({{"path", std::string(path)}, {"status", absl::StrCat(status)}})
      .Increment();
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
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace coordd
