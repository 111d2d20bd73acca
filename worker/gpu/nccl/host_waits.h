// Lets a device's stream wait for something that the host does. (io)
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "worker/gpu/cuda/device_handles.h"
#include "worker/gpu/nccl/nccl_runtime.h"

namespace coordd {

// Words in pinned memory at each of which a stream stops (DeviceKernels::Gate) until the host opens
// it. After a failure all are open, those that are taken then, too: what NCCL has launched behind
// one must be able to end, since its abort waits for that, and NcclGate keeps everybody from the
// results. Thread-safe. Shared with whoever may open one late.
class HostWaits {
 public:
  // At most: more than NcclBackend has on the device at one time.
  static constexpr size_t kWords = 128;

  HostWaits(std::shared_ptr<NcclRuntime> runtime, int32_t device)
      : runtime_(std::move(runtime)), device_(device) {}

  // A closed word, until Return. REQUIRES: fewer than kWords are taken. RESOURCE_EXHAUSTED: no
  // pinned memory for the first.
  absl::StatusOr<size_t> Take();
  std::atomic<uint32_t>* word(size_t index);
  void Open(size_t index);
  // REQUIRES: the stream has passed it.
  void Return(size_t index);

  // The failure: opens all.
  void Release();

 private:
  // Constant after construction.
  const std::shared_ptr<NcclRuntime> runtime_;
  const int32_t device_;

  // Guarded by mu_.
  Mutex mu_;
  bool released_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<DeviceMemory> memory_ ABSL_GUARDED_BY(mu_);
  std::array<std::atomic<uint32_t>*, kWords> words_ ABSL_GUARDED_BY(mu_) = {};
  std::vector<size_t> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
