// Calls the host when a device's stream has come so far. (io)
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/gpu/cuda/device_handles.h"
#include "worker/gpu/nccl/nccl_runtime.h"

namespace coordd {

// The stream copies four bytes to a word in pinned memory, and the thread "nccl-exchange", which
// looks at the words while any is awaited, makes the call. Neither is a host function of the
// driver's (cuLaunchHostFunc), whose thread the driver may need itself, nor an event that is asked
// for: a cuMemFree elsewhere in the process may keep the driver's lock until the device is idle,
// and the device may be waiting for what the call begins. That thread makes no call of CUDA.
//
// One thread, but for Release.
class StreamCalls {
 public:
  // Under way at one time, at most: more than NcclBackend has on the device.
  static constexpr size_t kWords = 128;

  StreamCalls(std::shared_ptr<NcclRuntime> runtime, int32_t device)
      : runtime_(std::move(runtime)), device_(device) {}
  ~StreamCalls();  // Stop

  // Makes `call`, which must not be kept, when `stream` has come through what is enqueued there
  // now. What it begins is under way until Ended. After Release: never. REQUIRES: the same stream
  // always; fewer than kWords are awaited. RESOURCE_EXHAUSTED: no memory for the first.
  absl::Status After(CudaStream stream, std::function<void()> call);
  // Of what one call has begun. Thread-safe.
  void Ended();

  // Begins no call any more, and frees nothing: it does not wait for the driver. Thread-safe; one
  // that is being made goes on.
  void Release();
  // After Release: waits until nothing is under way any more; false: something is. Thread-safe.
  bool AwaitEnded(Clock& clock, absl::Time deadline);
  // Release; when it returns none is being made. Idempotent.
  void Stop();

 private:
  struct Awaited {
    size_t word = 0;
    std::function<void()> call;
  };
  absl::Status MakeMemory(CudaStream stream);
  void Run();
  // Waits for something to be awaited. False: the end. Leaves what is to be called now, if
  // anything.
  bool Next(std::function<void()>* call);

  // Constant after construction.
  const std::shared_ptr<NcclRuntime> runtime_;
  const int32_t device_;

  // Touched by the owner's thread; what is in them, by the device.
  std::optional<DeviceMemory> memory_;  // the words, and what the device's is filled from
  std::optional<DeviceMemory> come_;    // four bytes of the device, which streams copy from
  std::thread thread_;

  // Guarded by mu_.
  Mutex mu_;
  CondVar changed_;
  bool released_ ABSL_GUARDED_BY(mu_) = false;
  std::array<std::atomic<uint32_t>*, kWords> words_ ABSL_GUARDED_BY(mu_) = {};
  std::vector<size_t> free_ ABSL_GUARDED_BY(mu_);
  std::deque<Awaited> awaited_ ABSL_GUARDED_BY(mu_);  // in the order of the stream
  std::deque<Awaited> forgotten_ ABSL_GUARDED_BY(mu_);
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace coordd
