// Keeps everybody from the results of collectives that were aborted. (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/gpu/cuda/device_handles.h"
#include "worker/gpu/cuda/device_kernels.h"

namespace coordd {

// Values of the gate's word, which kernels.cu reads: a stream that reaches the gate passes it, or
// stays there until the word changes.
inline constexpr uint32_t kGateOpen = 0;
inline constexpr uint32_t kGateHeld = 1;
inline constexpr uint32_t kGatePassed = 2;  // it was held, and whoever waited knows of the failure

// A kernel of NCCL's that is aborted ends, and would let its stream go on over garbage. So what
// others wait for stands behind a kernel that reads a word in pinned memory, which is set before
// anything is aborted.
//
// The gate has a stream of its own, and never holds NCCL's: ncclCommAbort waits for every kernel
// that NCCL has launched, and would wait for one that stands behind a held gate until the program
// has been told.
class NcclGate {
 public:
  // `runtime` and `clock` outlive it. `limit`: a stream that is held for longer ends the context
  // (DeviceKernels::Gate): what would tell the program may be behind it.
  static absl::StatusOr<std::unique_ptr<NcclGate>> Create(
      DeviceRuntime& runtime, Clock& clock, int32_t device,
      absl::Duration limit = absl::InfiniteDuration());
  ~NcclGate();  // Pass
  NcclGate(const NcclGate&) = delete;
  NcclGate& operator=(const NcclGate&) = delete;

  // Records `end` behind what is enqueued on `stream` now, and behind the gate. One thread.
  absl::Status Record(CudaStream stream, DeviceEvent& end);

  // Whether what was before the last Record on its stream has ended. Waits for a Record alone. Any
  // thread.
  absl::StatusOr<bool> Through() const {
    MutexLock lock(&through_mu_);
    return on_device_->through.Happened();
  }

  // What is set to kGateHeld, by whoever is about to abort.
  std::atomic<uint32_t>* word() { return word_; }
  bool held() const { return word_->load(std::memory_order_acquire) == kGateHeld; }
  bool passed() const { return word_->load(std::memory_order_acquire) == kGatePassed; }
  // Whoever waits knows of the failure: what is held goes on. Thread-safe.
  void Open();
  // Open; when it was held, this returns when all that stood before
  // it has ended and can overwrite nothing any more; after two seconds in any case. Thread-safe.
  void Pass();

 private:
  // What kernels on the device refer to.
  struct OnDevice {
    DeviceStream stream;
    DeviceKernels kernels;
    DeviceEvent through;  // of the other stream, at the last Record
    DeviceEvent drained;
    DeviceMemory memory;
  };
  NcclGate(Clock& clock, int32_t device, absl::Duration limit, OnDevice on_device);
  bool AwaitDrained() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  Clock& clock_;
  const int32_t device_;
  const absl::Duration limit_;
  std::unique_ptr<OnDevice> on_device_;
  std::atomic<uint32_t>* word_;

  mutable Mutex through_mu_;  // over the event `through`

  // Guarded by mu_.
  Mutex mu_;  // those who pass together all wait
  bool drained_ ABSL_GUARDED_BY(mu_) = true;
};

}  // namespace coordd
