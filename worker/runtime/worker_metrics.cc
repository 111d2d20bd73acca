#include "worker/runtime/worker_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/version.h"
#include "common/machine/process_metrics.h"
#include "worker/runtime/gpu_metrics.h"

namespace coordd {
namespace {

using Counters = prometheus::Family<prometheus::Counter>;

// From the round trip of an idle loopback to a rank that is late by a validation pass.
prometheus::Histogram::BucketBoundaries LatencyBuckets() {
  return {1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3, 10, 30, 100, 300};
}

prometheus::Gauge& MakeGauge(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}

prometheus::Histogram& MakeHistogram(prometheus::Registry& registry, const char* name,
                                     const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(
      {}, LatencyBuckets());
}

prometheus::Labels Labels(CollectiveKind kind, absl::string_view backend) {
  return {{"kind", std::string(Name(kind))}, {"backend", std::string(backend)}};
}
prometheus::Labels Labels(CollectiveKind kind, absl::string_view backend, absl::StatusCode code) {
  prometheus::Labels labels = Labels(kind, backend);
  labels["code"] = absl::StatusCodeToString(code);
  return labels;
}

}  // namespace

struct WorkerMetrics::Series {
  explicit Series(prometheus::Registry& r)
      : collectives(
            prometheus::BuildCounter()
                .Name("coordd_worker_collectives_total")
                .Help("Tensors whose collective has ended, by kind, backend and status code")
                .Register(r)),
        payload_bytes(prometheus::BuildCounter()
                          .Name("coordd_worker_payload_bytes_total")
                          .Help("Bytes of this rank's tensors in collectives that succeeded")
                          .Register(r)),
        negotiation(MakeHistogram(r, "coordd_worker_negotiation_seconds",
                                  "From submission of a tensor to the plan that contains it")),
        execution(MakeHistogram(r, "coordd_worker_execution_seconds",
                                "From launch of a batch to its end")),
        heartbeat_lag(MakeGauge(r, "coordd_worker_heartbeat_lag_seconds",
                                "How late the last heartbeat was sent")),
        arrival_lag(MakeGauge(r, "coordd_worker_arrival_lag_seconds",
                              "How late this rank comes to collectives, behind the first")),
        control_turns(prometheus::BuildCounter()
                          .Name("coordd_worker_control_turns_total")
                          .Help("Wake-ups of the control thread")
                          .Register(r)
                          .Add({})),
        refused_connections(
            prometheus::BuildCounter()
                .Name("coordd_worker_refused_connections_total")
                .Help("Connections to the port for other ranks that have proved nothing")
                .Register(r)
                .Add({})),
        generation(MakeGauge(r, "coordd_worker_generation", "Generation of the job")),
        rank(MakeGauge(r, "coordd_worker_rank", "Rank in the generation")),
        size(MakeGauge(r, "coordd_worker_size", "Ranks in the generation")),
        maps_node(MakeGauge(r, "coordd_worker_maps_node_memory",
                            "1: the ranks of the node have each other's memory mapped")),
        edges(prometheus::BuildGauge()
                  .Name("coordd_worker_edges")
                  .Help("Ranks of other nodes that this one exchanges messages with, by transport")
                  .Register(r)),
        pending(MakeGauge(r, "coordd_worker_pending_tensors",
                          "Tensors submitted here that no plan contains yet")),
        submissions(MakeGauge(r, "coordd_worker_submissions_queued",
                              "Tensors submitted that have not been reported to coordd yet")),
        executor_queue(MakeGauge(r, "coordd_worker_executor_batches",
                                 "Batches launched by plan that have not ended")),
        completion_queue(MakeGauge(r, "coordd_worker_completions_queued",
                                   "Ended batches that wait for unpacking")),
        fusion_bytes(
            MakeGauge(r, "coordd_worker_fusion_buffer_bytes", "Memory held by fusion buffers")),
        device_fusion_bytes(MakeGauge(r, "coordd_worker_device_fusion_buffer_bytes",
                                      "Memory of the device held by its fusion buffer")),
        device_registered_bytes(MakeGauge(r, "coordd_worker_device_registered_bytes",
                                          "Of the device's fusion buffer: registered with NCCL")),
        device_result_bytes(MakeGauge(r, "coordd_worker_device_result_bytes",
                                      "Memory of the device for results that the library makes")),
        gpu(r),
        process(r) {
    prometheus::BuildGauge()
        .Name("coordd_worker_build_info")
        .Help("Always 1; the labels tell the version")
        .Register(r)
        .Add({{"version", kVersion}})
        .Set(1);
  }

  // Thread-safe by itself.
  Counters& collectives;
  Counters& payload_bytes;
  prometheus::Histogram& negotiation;
  prometheus::Histogram& execution;
  prometheus::Gauge& heartbeat_lag;
  prometheus::Gauge& arrival_lag;
  prometheus::Counter& control_turns;
  prometheus::Counter& refused_connections;
  prometheus::Gauge& generation;
  prometheus::Gauge& rank;
  prometheus::Gauge& size;
  prometheus::Gauge& maps_node;
  prometheus::Family<prometheus::Gauge>& edges;
  prometheus::Gauge& pending;
  prometheus::Gauge& submissions;
  prometheus::Gauge& executor_queue;
  prometheus::Gauge& completion_queue;
  prometheus::Gauge& fusion_bytes;
  prometheus::Gauge& device_fusion_bytes;
  prometheus::Gauge& device_registered_bytes;
  prometheus::Gauge& device_result_bytes;
  std::atomic<int64_t> told_refused = 0;  // of SetConnectionsRefused
  GpuMetrics gpu;
  ProcessMetrics process;

  // Touched by SetEdges: those that there have been.
  std::map<std::string, prometheus::Gauge*> edges_over;

  // Guarded by mu.
  Mutex mu;
  // Nothing is taken out, and what was added does not change.
  std::map<std::pair<CollectiveKind, std::string>, Succeeded> succeeded ABSL_GUARDED_BY(mu);
  std::array<std::atomic<const Succeeded*>, static_cast<size_t>(kLastCollectiveKind) + 1> latest =
      {};  // by kind: of the backend that was asked for last
  std::vector<std::shared_ptr<Tally>> tallies ABSL_GUARDED_BY(mu);
};

WorkerMetrics::WorkerMetrics(prometheus::Registry& registry)
    : series_(std::make_unique<Series>(registry)) {}
WorkerMetrics::~WorkerMetrics() = default;

void WorkerMetrics::RecordCollective(CollectiveKind kind, absl::string_view backend,
                                     absl::StatusCode code, int64_t payload_bytes) {
  if (code != absl::StatusCode::kOk) {
    series_->collectives.Add(Labels(kind, backend, code)).Increment();
    return;
  }
  SucceededOf(kind, backend).Record(payload_bytes);
}
const WorkerMetrics::Succeeded& WorkerMetrics::SucceededOf(CollectiveKind kind,
                                                           absl::string_view backend) {
  std::atomic<const Succeeded*>& latest = series_->latest[static_cast<size_t>(kind)];
  const Succeeded* known = latest.load(std::memory_order_acquire);
  if (known != nullptr && known->backend_ == backend) return *known;
  MutexLock lock(&series_->mu);
  const auto at = series_->succeeded.try_emplace({kind, std::string(backend)}).first;
  Succeeded& found = at->second;
  if (found.tensors_ == nullptr) {
    found.backend_ = at->first.second;
    found.tensors_ = &series_->collectives.Add(Labels(kind, backend, absl::StatusCode::kOk));
    found.payload_bytes_ = &series_->payload_bytes.Add(Labels(kind, backend));
  }
  latest.store(&found, std::memory_order_release);
  return found;
}
void WorkerMetrics::Succeeded::Record(int64_t payload_bytes) const {
  payload_bytes_->Increment(static_cast<double>(payload_bytes));
  tensors_->Increment();
}
std::shared_ptr<WorkerMetrics::Tally> WorkerMetrics::OpenTally(CollectiveKind kind,
                                                               absl::string_view backend) {
  auto tally = std::make_shared<Tally>();
  tally->counters_ = SucceededOf(kind, backend);
  MutexLock lock(&series_->mu);
  series_->tallies.push_back(tally);
  return tally;
}
void WorkerMetrics::TakeTallies() {
  MutexLock lock(&series_->mu);
  std::erase_if(series_->tallies, [](const std::shared_ptr<Tally>& tally) {
    // Nobody else has it any more: what it has counted by now is all.
    const bool is_last = tally.use_count() == 1;
    std::atomic_thread_fence(std::memory_order_acquire);
    const int64_t tensors = tally->tensors_.load(std::memory_order_relaxed);
    const int64_t bytes = tally->payload_bytes_.load(std::memory_order_relaxed);
    tally->counters_.tensors_->Increment(static_cast<double>(tensors - tally->told_tensors_));
    tally->counters_.payload_bytes_->Increment(
        static_cast<double>(bytes - tally->told_payload_bytes_));
    tally->told_tensors_ = tensors;
    tally->told_payload_bytes_ = bytes;
    return is_last;
  });
}
void WorkerMetrics::ReadProcess() { series_->process.Update(); }
void WorkerMetrics::RecordNegotiation(absl::Duration reported_to_planned) {
  series_->negotiation.Observe(absl::ToDoubleSeconds(reported_to_planned));
}
void WorkerMetrics::RecordExecution(absl::Duration launched_to_done) {
  series_->execution.Observe(absl::ToDoubleSeconds(launched_to_done));
}
void WorkerMetrics::RecordHeartbeatLag(absl::Duration lag) {
  series_->heartbeat_lag.Set(absl::ToDoubleSeconds(lag));
}
void WorkerMetrics::SetArrivalLag(absl::Duration behind_the_first_rank) {
  series_->arrival_lag.Set(absl::ToDoubleSeconds(behind_the_first_rank));
}
void WorkerMetrics::RecordControlTurn() { series_->control_turns.Increment(); }
void WorkerMetrics::SetConnectionsRefused(int64_t connections) {
  const int64_t told = series_->told_refused.exchange(connections, std::memory_order_relaxed);
  series_->refused_connections.Increment(static_cast<double>(connections - told));
}

void WorkerMetrics::SetPlacement(Generation generation, int32_t rank, int32_t size) {
  series_->generation.Set(static_cast<double>(ToInt(generation)));
  series_->rank.Set(rank);
  series_->size.Set(size);
}
void WorkerMetrics::SetMapsNodeMemory(bool maps) { series_->maps_node.Set(maps ? 1 : 0); }
void WorkerMetrics::SetEdges(const v1::HostEdges& edges) {
  for (auto& [over, ranks] : series_->edges_over) ranks->Set(0);
  for (const v1::EdgeGroup& group : edges.between_nodes()) {
    prometheus::Gauge*& ranks = series_->edges_over[group.over()];
    if (ranks == nullptr) ranks = &series_->edges.Add({{"over", group.over()}});
    ranks->Set(group.ranks());
  }
}
void WorkerMetrics::SetPendingTensors(int64_t tensors) {
  series_->pending.Set(static_cast<double>(tensors));
}
void WorkerMetrics::SetSubmissionsQueued(int64_t submissions) {
  series_->submissions.Set(static_cast<double>(submissions));
}
void WorkerMetrics::SetExecutorQueue(int64_t batches) {
  series_->executor_queue.Set(static_cast<double>(batches));
}
void WorkerMetrics::SetCompletionQueue(int64_t items) {
  series_->completion_queue.Set(static_cast<double>(items));
}
void WorkerMetrics::SetFusionBufferBytes(int64_t bytes) {
  series_->fusion_bytes.Set(static_cast<double>(bytes));
}
void WorkerMetrics::SetDeviceFusionBufferBytes(int64_t bytes) {
  series_->device_fusion_bytes.Set(static_cast<double>(bytes));
}
void WorkerMetrics::SetDeviceRegisteredBytes(int64_t bytes) {
  series_->device_registered_bytes.Set(static_cast<double>(bytes));
}
void WorkerMetrics::SetGpu(const v1::GpuHealth& health) { series_->gpu.Set(health); }
void WorkerMetrics::SetDeviceResultBytes(int64_t bytes) {
  series_->device_result_bytes.Set(static_cast<double>(bytes));
}

int64_t WorkerMetrics::control_turns() const {
  return static_cast<int64_t>(series_->control_turns.Value());
}

std::string MetricsText(prometheus::Registry& registry, WorkerMetrics& metrics,
                        int64_t connections_refused) {
  metrics.SetConnectionsRefused(connections_refused);
  metrics.TakeTallies();
  metrics.ReadProcess();
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

}  // namespace coordd
