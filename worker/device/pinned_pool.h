// Pinned host memory that is used again: making it takes the driver milliseconds. (io)
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "worker/device/device_handles.h"

namespace coordd {

// Thread-safe. In sizes that are powers of two.
class PinnedPool {
 public:
  // What is kept for the next user; beyond it, memory is given back to the system. A training step
  // of 250 million float32 parameters.
  static constexpr int64_t kKeptBytesMax = int64_t{1} << 30;

  // `device` outlives it.
  explicit PinnedPool(DeviceRuntime& device) : device_(device) {}

  // At least `size_bytes`. RESOURCE_EXHAUSTED: the driver's words.
  absl::StatusOr<DeviceMemory> Take(int32_t device, int64_t size_bytes);
  void Return(DeviceMemory memory);

 private:
  // Constant after construction.
  DeviceRuntime& device_;

  // Guarded by mu_.
  Mutex mu_;
  std::map<int64_t, std::vector<DeviceMemory>> free_ ABSL_GUARDED_BY(mu_);  // by size
  int64_t kept_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace coordd
