// Communicators of NCCL for what programs capture into CUDA graphs. (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/store.h"
#include "worker/gpu/cuda/device_kernels.h"
#include "worker/gpu/nccl/captured_calls.h"
#include "worker/gpu/nccl/communicator_maker.h"
#include "worker/gpu/nccl/nccl_communicator.h"
#include "worker/gpu/nccl/nccl_watchdog.h"

namespace coordd {

struct GraphCommunicatorsOptions {
  int32_t device = 0;
  absl::Duration gate_limit = absl::InfiniteDuration();  // as NcclBackendOptions'
  CommunicatorMakerOptions communicators;
  NcclWatchdogOptions watchdog;
};

// One for each process set that has asked for it, beside the one of ordinary batches: a launch of a
// graph is not seen by coordd, so it has no place in their order.
//
// A captured call is NCCL's, on the program's stream, and behind it a kernel that reads a word in
// pinned memory (DeviceKernels::Seal), as the gate of ordinary batches. The word is held before
// NCCL is aborted, and let pass when the program has been told; from then on a launch of such a
// graph, whose communicator is gone, leaves no number but NaN. The word, the kernels and the
// runtime stay to the end of the process, since graphs refer to them.
//
// Of one generation. Thread-safe.
class GraphCommunicators {
 public:
  // `clock` outlives it. `failed` is called once, when NCCL has failed or Fail was called.
  // FAILED_PRECONDITION: a driver that captures nothing.
  static absl::StatusOr<std::shared_ptr<GraphCommunicators>> Create(
      std::shared_ptr<NcclRuntime> runtime, Clock& clock, GraphCommunicatorsOptions options,
      std::function<void()> failed);
  ~GraphCommunicators();
  GraphCommunicators(const GraphCommunicators&) = delete;
  GraphCommunicators& operator=(const GraphCommunicators&) = delete;

  int32_t device() const { return options_.device; }
  // FAILED_PRECONDITION: what to call before a capture.
  static absl::Status NotPrepared(ProcessSetId process_set);

  // Collective: makes the set's communicator, connects it by a first allreduce and waits for that;
  // does nothing where it is made. `store`: the generation's. DEADLINE_EXCEEDED: who was missing;
  // UNAVAILABLE: NCCL's or the driver's words; ABORTED after Fail.
  absl::Status Prepare(NcclPlace place, Store& store, absl::Time deadline);
  bool IsPrepared(ProcessSetId process_set) { return Find(process_set).ok(); }
  // Enqueues it on the stream, which is captured, and returns when it is a part of the graph.
  // FAILED_PRECONDITION: the set is not prepared; else as Prepare. REQUIRES: checked buffers; NCCL
  // reduces the type.
  absl::Status Capture(ProcessSetId process_set, const CapturedCall& call, CudaStream stream);
  // The text of what was captured, for FirstDifference. FAILED_PRECONDITION: the set is not
  // prepared.
  absl::StatusOr<std::string> Captured(ProcessSetId process_set);
  void EndGroup(ProcessSetId process_set);

  // Everything captured ends, now and whenever it is launched; what follows it on its stream is
  // held.
  void Fail(absl::Status why);
  // The generation ends in peace, this rank's graphs are through: others may have yet to read what
  // theirs read here, for which they are given a moment.
  void End();
  // The program has been told: what is held goes on.
  void PassGate();
  bool HoldsGate() const { return word_->load(std::memory_order_acquire) == 1; }

 private:
  struct Member {
    std::shared_ptr<NcclCommunicator> communicator;
    Mutex mu;  // one call after the other is captured
    CapturedSequence sequence ABSL_GUARDED_BY(mu);
  };

  GraphCommunicators(std::shared_ptr<NcclRuntime> runtime, Clock& clock,
                     GraphCommunicatorsOptions options, DeviceKernels kernels,
                     std::atomic<uint32_t>* word, std::function<void()> failed);
  absl::StatusOr<std::shared_ptr<Member>> Find(ProcessSetId process_set);
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> Make(NcclPlace place, Store& store,
                                                         absl::Time deadline);
  // Runs one small allreduce, and captures one, which keeps NCCL from freeing the communicator.
  absl::Status Connect(NcclCommunicator& communicator, absl::Time deadline);
  absl::Status AwaitLaunched(NcclCommunicator& communicator, absl::Time deadline);
  absl::Status Enqueue(NcclCommunicator& communicator, const CapturedCall& call, CudaStream stream);

  // Constant after construction.
  const std::shared_ptr<NcclRuntime> runtime_;
  const GraphCommunicatorsOptions options_;
  Clock& clock_;
  const DeviceKernels kernels_;
  std::atomic<uint32_t>* const word_;
  NcclWatchdog watchdog_;  // thread-safe by itself

  // Guarded by mu_.
  Mutex mu_;
  std::map<ProcessSetId, std::shared_ptr<Member>> members_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
