// What the ranks of each process set have agreed on for tensors on devices. (io)
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/store.h"
#include "worker/execute/process_set_table.h"
#include "worker/gpu/nccl/nccl_memory.h"
#include "worker/gpu/plane/device_agreement.h"
#include "worker/gpu/plane/device_report.h"
#include "worker/gpu/plane/gpu_access.h"
#include "worker/gpu/plane/plane_options.h"
#include "worker/interfaces/group_layout.h"

namespace coordd {

// Thread-safe; of one generation.
//
// Invariant: what this rank claims of its device is of one device, the first that was claimed.
class DeviceAgreements {
 public:
  // Ends on destruction, which waits for the threads of what has not been decided.
  using Ending = std::map<ProcessSetId, std::unique_ptr<DeviceAgreement>>;

  // All but `layout` outlive it. `decided` is called on a thread of its own, once for each set.
  DeviceAgreements(const DevicePlaneOptions& options, const GroupLayout& layout, GpuAccess& access,
                   Store& store, Clock& clock, DeviceReport& report,
                   std::function<void(ProcessSetId)> decided);

  // This rank's device, from its first tensor on. INVALID_ARGUMENT: it has another.
  absl::Status ClaimDevice(int32_t device);
  int32_t device();
  // Of the fusion buffer that is to be a symmetric window; nullptr: there is none.
  std::shared_ptr<NcclMemory> window();

  void DefineGroup(ProcessSetId process_set, RankList ranks);
  // Nothing new is agreed on for it. Whether anything has been begun.
  bool EndGroup(ProcessSetId process_set);
  // The last batch of the set is over.
  void Forget(ProcessSetId process_set);
  // nullopt: it has ended.
  std::optional<std::vector<int32_t>> FindMembers(ProcessSetId process_set);
  // REQUIRES: it has not ended.
  std::vector<int32_t> MembersOf(ProcessSetId process_set);

  // Unless that has been done, or the set has ended.
  void Begin(ProcessSetId process_set);
  // nullopt: not yet.
  std::optional<absl::StatusOr<DeviceDecision>> DecisionOf(ProcessSetId process_set);
  // Nothing is begun any more.
  Ending Stop();

 private:
  DeviceClaim Claim();
  // This rank's place in the set; nullopt: begun already, or it has been removed.
  std::optional<DeviceAgreement::Place> PlaceIn(ProcessSetId process_set);
  int64_t WindowBytes(const std::shared_ptr<NcclRuntime>& nccl, int32_t device);

  // Constant after construction.
  const DevicePlaneOptions& options_;
  const GroupLayout layout_;
  GpuAccess& access_;
  Store& store_;
  Clock& clock_;
  DeviceReport& report_;
  const std::function<void(ProcessSetId)> decided_;

  // Guarded by mu_.
  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  int32_t device_ ABSL_GUARDED_BY(mu_) = -1;  // of this rank; -1: none yet
  std::map<ProcessSetId, RankList> sets_ ABSL_GUARDED_BY(mu_);
  Ending agreements_ ABSL_GUARDED_BY(mu_);
  std::optional<std::shared_ptr<NcclMemory>> window_ ABSL_GUARDED_BY(mu_);  // once asked for
};

}  // namespace coordd
