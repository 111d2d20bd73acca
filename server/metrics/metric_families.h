// The families behind ServerMetrics, and the series of each job; for its own file only. (io)
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "common/base/mutex.h"
#include "coordd/v1/admin.pb.h"
#include "server/metrics/server_metrics.h"

namespace coordd {

struct ServerMetrics::Families {
  template <typename T>
  using Family = prometheus::Family<T>;
  using Counter = prometheus::Counter;
  using Gauge = prometheus::Gauge;
  using Histogram = prometheus::Histogram;
  using Labels = prometheus::Labels;

  // Twice the jobs that coordd remembers by default; the rest share one series.
  static constexpr size_t kMaxJobSeries = 2048;
  static constexpr char kOtherJobs[] = "(others)";
  // Not "job": Prometheus puts the name of the scrape configuration there and would rename ours.
  static constexpr char kJobLabel[] = "job_name";

  inline static const Histogram::BucketBoundaries kNegotiationSeconds = {
      0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
      0.05,   0.1,     0.25,   0.5,   1,      2.5,   10,   60};
  inline static const Histogram::BucketBoundaries kStateCommitSeconds = {
      0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 60};
  inline static const Histogram::BucketBoundaries kTurnSeconds = {0.00001, 0.0001, 0.001,
                                                                  0.01,    0.1,    1};

  static Family<Counter>& NewCounter(prometheus::Registry& registry, const char* name,
                                     const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  static Family<Gauge>& NewGauge(prometheus::Registry& registry, const char* name,
                                 const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  }
  static Family<Histogram>& NewHistogram(prometheus::Registry& registry, const char* name,
                                         const char* help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
  }

  explicit Families(prometheus::Registry& r) : registry(r) {}

  // The series of `family` for one job; forgotten with the job.
  template <typename T, typename... Args>
  T& ForJob(Family<T>& family, const std::string& job, Labels labels, const Args&... args)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const bool known = jobs.count(job) != 0 || jobs.size() < kMaxJobSeries;
    const std::string& name = known ? job : kOtherJobs;
    labels[kJobLabel] = name;
    T& metric = family.Add(labels, args...);
    JobSeries& job_series = jobs[name];
    job_series.series.emplace(&metric, [&family, &metric] { family.Remove(&metric); });
    if (!job_series.was_born) {
      job_series.was_born = true;
      Bear(name);
    }
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

  void Bear(const std::string& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void BearOwn();
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
  Family<Counter>& stalls = NewCounter(
      registry, "coordd_stalls_total",
      "Tensors, joins, requests for process sets and calls of comms that began to stall.");
  Family<Counter>& failures_reported =
      NewCounter(registry, "coordd_failures_reported_total",
                 "Failures of collectives that members have reported to coordd.");
  Family<Gauge>& stall_missing_rank =
      NewGauge(registry, "coordd_stall_missing_rank",
               "The first rank that the longest stalled tensor waits for; -1: none.");
  Family<Gauge>& pending = NewGauge(registry, "coordd_pending_tensors",
                                    "Tensors that some ranks have submitted and others have not.");
  Family<Gauge>& stalled =
      NewGauge(registry, "coordd_stalled_tensors",
               "Pending tensors and calls of comms that are older than the stall warning.");
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
  Family<Counter>& audit_entries_lost =
      NewCounter(registry, "coordd_audit_entries_lost_total",
                 "Entries that could not be written to the audit log, by reason.");
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
  Family<Counter>& http_refused =
      NewCounter(registry, "coordd_http_refused_total",
                 "Connections and requests that HTTP has refused, by reason.");

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
    bool was_born = false;                                // its counters are there
    bool was_missing = false;                             // from the last state
  };
  Mutex mu;
  std::map<std::string, JobSeries> jobs ABSL_GUARDED_BY(mu);
};

}  // namespace coordd
