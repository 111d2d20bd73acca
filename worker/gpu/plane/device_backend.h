// NCCL's backend of a generation, made with its first batch, and what is defined there. (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/store.h"
#include "worker/gpu/cuda/result_memory.h"
#include "worker/gpu/nccl/nccl_backend.h"
#include "worker/gpu/plane/device_agreements.h"
#include "worker/gpu/plane/device_registrations.h"
#include "worker/gpu/plane/gpu_access.h"
#include "worker/gpu/plane/memory_meetings.h"
#include "worker/gpu/plane/plane_options.h"

namespace coordd {

// The host's part of hierarchical allreduces (Hierarchy::exchange): among some ranks, on a lane and
// in a group of its number that nothing else uses.
struct DeviceExchanges {
  std::function<void(LaneId, RankList)> open;
  std::function<void(LaneId)> end;
  std::function<void(CollectiveArgs, CollectiveBackend::Done)> exchange;
};

// get() and results() are thread-safe; the rest is for one thread at a time.
//
// Invariant: what was kept ends behind the backend, and the backend with this object: not by
// whoever happens to have the last reference, which may be the program's thread, since the end
// waits for NCCL's threads.
class DeviceBackend {
 public:
  // All but `layout` outlive it.
  DeviceBackend(const DevicePlaneOptions& options, const GroupLayout& layout, GpuAccess& access,
                Store& store, Clock& clock, DeviceAgreements& agreements,
                DeviceExchanges exchanges);
  ~DeviceBackend() { End(); }
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  // nullptr: it is not made yet.
  std::shared_ptr<NcclBackend> get();
  std::shared_ptr<ResultMemory> results();
  bool HoldsGate();
  DeviceRegistrations& registrations() { return registrations_; }  // thread-safe by itself
  MemoryMeetings& meetings() { return meetings_; }                 // likewise

  // Does nothing the second time. `aborted`: it is aborted at once, also where that is set
  // meanwhile. As GpuAccess::Nccl and NcclBackend::Connect.
  absl::Status Make(const std::atomic<bool>& aborted);
  // REQUIRES here and below: made.
  const std::shared_ptr<NcclRuntime>& runtime() const { return runtime_; }
  DeviceRuntime& device() const { return *runtime_->device; }
  // The set, with its hierarchy if that is what was agreed on. Does nothing the second time.
  absl::Status Define(ProcessSetId process_set);
  // Memory, until the backend ends.
  void Keep(std::shared_ptr<const void> memory) { kept_.push_back(std::move(memory)); }

  // Waits for NCCL's threads. Idempotent.
  void End();

  // Whatever was defined of it. Also before it is made.
  void EndGroup(ProcessSetId process_set);

 private:
  using Decision = std::optional<absl::StatusOr<DeviceDecision>>;
  // What the generation before has left: shrunk, where all ranks have agreed on it, or ended.
  void UseKept(const Decision& decision, NcclBackend& backend);
  void UseHierarchy(ProcessSetId process_set, int32_t ranks_per_node,
                    absl::Span<const int32_t> ranks, NcclBackend& backend);

  // Constant after construction.
  const DevicePlaneOptions& options_;
  const GroupLayout layout_;
  GpuAccess& access_;
  Store& store_;
  Clock& clock_;
  DeviceAgreements& agreements_;
  const DeviceExchanges exchanges_;
  DeviceRegistrations registrations_;  // thread-safe by itself
  MemoryMeetings meetings_;            // likewise

  // Guarded by mu_.
  Mutex mu_;
  std::shared_ptr<NcclBackend> backend_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<ResultMemory> results_ ABSL_GUARDED_BY(mu_);  // made with the backend

  // Touched by one thread at a time.
  std::shared_ptr<NcclRuntime> runtime_;
  std::vector<std::shared_ptr<const void>> kept_;
  std::set<ProcessSetId> defined_;         // at the backend
  std::set<ProcessSetId> with_exchanges_;  // of these, with a lane of the host's
};

}  // namespace coordd
