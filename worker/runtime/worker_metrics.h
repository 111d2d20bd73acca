// All metrics of a worker in one struct: the contract with dashboards (docs/METRICS.md is checked
// against it). (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/types.pb.h"

namespace prometheus {
class Counter;
class Registry;
}  // namespace prometheus

namespace coordd {

// Thread-safe. The registry outlives it. Durations are recorded in seconds.
class WorkerMetrics {
 public:
  explicit WorkerMetrics(prometheus::Registry& registry);
  ~WorkerMetrics();

  // One tensor has ended. `code`: its status.
  void RecordCollective(CollectiveKind kind, absl::string_view backend, absl::StatusCode code,
                        int64_t payload_bytes);
  // The count of one kind on one backend, looked up once: that takes as long as everything else
  // that ends a tensor. Thread-safe; not longer than the metrics.
  class Succeeded {
   public:
    void Record(int64_t payload_bytes) const;

   private:
    friend class WorkerMetrics;
    absl::string_view backend_;
    prometheus::Counter* tensors_ = nullptr;
    prometheus::Counter* payload_bytes_ = nullptr;
  };
  // Lives as long as the metrics.
  const Succeeded& SucceededOf(CollectiveKind kind, absl::string_view backend);
  // What one caller counts by itself: two plain additions, where a counter's would be a tenth of
  // the smallest collective. Part of the metrics when they are read by MetricsText.
  class Tally {
   public:
    // One thread at a time.
    void Record(int64_t payload_bytes) {
      Add(tensors_, 1);
      Add(payload_bytes_, payload_bytes);
    }

   private:
    friend class WorkerMetrics;
    static void Add(std::atomic<int64_t>& sum, int64_t more) {
      sum.store(sum.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
    }
    std::atomic<int64_t> tensors_ = 0, payload_bytes_ = 0;
    int64_t told_tensors_ = 0, told_payload_bytes_ = 0;  // touched by TakeTallies
    Succeeded counters_;
  };
  // Its owner may outlive the metrics.
  std::shared_ptr<Tally> OpenTally(CollectiveKind kind, absl::string_view backend);
  // What has been counted since the last call.
  void TakeTallies();
  // What the process takes of its machine, as it is now.
  void ReadProcess();
  void RecordNegotiation(absl::Duration reported_to_planned);
  void RecordExecution(absl::Duration launched_to_done);
  void RecordHeartbeatLag(absl::Duration lag);
  void SetArrivalLag(absl::Duration behind_the_first_rank);
  void RecordControlTurn();
  // Of all that came to this rank's port for other ranks so far, how many were not believed.
  void SetConnectionsRefused(int64_t connections);

  void SetPlacement(Generation generation, int32_t rank, int32_t size);
  void SetMapsNodeMemory(bool maps);
  // One thread at a time.
  void SetEdges(const v1::HostEdges& edges);
  void SetPendingTensors(int64_t tensors);
  void SetSubmissionsQueued(int64_t submissions);
  void SetExecutorQueue(int64_t batches);
  void SetCompletionQueue(int64_t items);
  void SetFusionBufferBytes(int64_t bytes);
  void SetDeviceFusionBufferBytes(int64_t bytes);
  void SetDeviceRegisteredBytes(int64_t bytes);
  void SetDeviceResultBytes(int64_t bytes);
  void SetGpu(const v1::GpuHealth& health);

  // Turns of the control thread so far: an idle worker makes one per heartbeat and one per answer.
  int64_t control_turns() const;

 private:
  struct Series;
  const std::unique_ptr<Series> series_;
};

// The text of /metrics. `connections_refused` as SetConnectionsRefused takes it.
std::string MetricsText(prometheus::Registry& registry, WorkerMetrics& metrics,
                        int64_t connections_refused = 0);

}  // namespace coordd
