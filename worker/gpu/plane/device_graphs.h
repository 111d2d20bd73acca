// Collectives on streams that a program captures into CUDA graphs. (io)
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/store.h"
#include "worker/execute/process_set_table.h"
#include "worker/execute/tensor_job.h"
#include "worker/gpu/nccl/device_claim.h"
#include "worker/gpu/nccl/graph_communicators.h"
#include "worker/gpu/nccl/nccl_backend.h"
#include "worker/gpu/plane/gpu_access.h"
#include "worker/interfaces/group_layout.h"

namespace coordd {

// What is captured is not negotiated: a launch of a graph happens without coordd, and cannot wait
// for what ranks agree on. So a process set is prepared by a call of all its ranks, which makes a
// communicator for it, and what is captured afterwards goes to NCCL at once, on the program's
// stream and thread: shapes are equal on all ranks, and the order of calls and launches is the
// program's affair. Check compares what the ranks have captured.
//
// Of one generation. Thread-safe; nothing of it is on the way of ordinary batches.
class DeviceGraphs {
 public:
  struct Hooks {
    // This rank's device. INVALID_ARGUMENT: it has another.
    std::function<absl::Status(int32_t device)> claim;
    // Begins to agree on a set, if that has not begun; nullopt: not yet.
    std::function<std::optional<absl::StatusOr<DeviceDecision>>(ProcessSetId)> agree;
    // NCCL has failed: the data plane is over.
    std::function<void()> failed;
  };

  // `access`, `store` (the generation's) and `clock` outlive it. Of `options` it takes what
  // concerns communicators and the gate.
  DeviceGraphs(const GroupLayout& layout, GpuAccess& access, Store& store, Clock& clock,
               NcclBackendOptions options, Hooks hooks);
  DeviceGraphs(const DeviceGraphs&) = delete;
  DeviceGraphs& operator=(const DeviceGraphs&) = delete;

  // Collective; waits. Does nothing where it has been done. UNIMPLEMENTED: no devices here, or not
  // all ranks of the set have NCCL, and why; INVALID_ARGUMENT: not this rank's device, or not a set
  // that it is in; DEADLINE_EXCEEDED: who was missing; UNAVAILABLE; ABORTED.
  absl::Status Prepare(ProcessSetId process_set, int32_t device, absl::Time deadline);
  // Collective; waits. FAILED_PRECONDITION: the set is not prepared; INVALID_ARGUMENT, on all
  // ranks: the first difference between what they have captured; DEADLINE_EXCEEDED; the store's.
  absl::Status Check(ProcessSetId process_set, absl::Time deadline);

  // The tensors of one call: whether their stream is captured, and so are they by now, with their
  // Works complete; the results are there in the stream's order, with each launch. Errors concern
  // the tensor `failed`, and nothing was captured: FAILED_PRECONDITION not prepared; UNIMPLEMENTED
  // what is not captured; INVALID_ARGUMENT; as GraphCommunicators::Capture.
  absl::StatusOr<bool> Capture(absl::Span<TensorJob> jobs, size_t* failed);

  void DefineGroup(ProcessSetId process_set, RankList ranks);
  void EndGroup(ProcessSetId process_set);
  // Aborts as DevicePlane does.
  void Abort();
  void Told();
  bool HoldsGate() {
    const std::shared_ptr<GraphCommunicators> communicators = made();
    return communicators != nullptr && communicators->HoldsGate();
  }
  // Ends as GraphCommunicators do.
  void End();

 private:
  struct Place {
    int32_t index = 0, size = 1;  // of this rank, in the set
    RankList ranks;               // nullptr: all
  };
  absl::StatusOr<Place> PlaceIn(ProcessSetId process_set);
  absl::Status AwaitNccl(ProcessSetId process_set, absl::Time deadline);
  absl::StatusOr<std::shared_ptr<GraphCommunicators>> Communicators(int32_t device);
  std::shared_ptr<GraphCommunicators> made();
  absl::StatusOr<std::string> Compare(ProcessSetId process_set, const Place& place,
                                      const std::string& prefix, absl::Time deadline);

  // Constant after construction.
  const GroupLayout layout_;
  GpuAccess& access_;
  Store& store_;
  Clock& clock_;
  const NcclBackendOptions options_;
  const Hooks hooks_;

  // Guarded by mu_.
  Mutex mu_;
  bool aborted_ ABSL_GUARDED_BY(mu_) = false;
  std::map<ProcessSetId, RankList> sets_ ABSL_GUARDED_BY(mu_);
  std::map<ProcessSetId, int64_t> checks_ ABSL_GUARDED_BY(mu_);  // so many
  std::shared_ptr<GraphCommunicators> communicators_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
