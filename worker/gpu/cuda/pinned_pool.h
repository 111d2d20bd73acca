// Pinned host memory that is used again: making it takes the driver milliseconds. (io)
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "worker/gpu/cuda/device_handles.h"

namespace coordd {

// Thread-safe. In sizes that are powers of two.
//
// Nothing is freed before the end: cuMemFreeHost waits for everything that is on the device, which
// may be a held gate, and whoever returns memory is a thread that others wait for. So what is kept
// is bounded by what was in use at one time: of each size, and beyond kManyBytes of larger ones,
// too, which then serve for smaller requests before new memory is made.
class PinnedPool {
 public:
  // The memory of a training step of 250 million float32 parameters.
  static constexpr int64_t kManyBytes = int64_t{1} << 30;

  // `device` outlives it.
  explicit PinnedPool(DeviceRuntime& device, int64_t many_bytes = kManyBytes)
      : device_(device), many_bytes_(many_bytes) {}

  // Takes at least `size_bytes`. RESOURCE_EXHAUSTED: the driver's words.
  absl::StatusOr<DeviceMemory> Take(int32_t device, int64_t size_bytes);
  void Return(DeviceMemory memory);
  // The bytes that were made and not freed.
  int64_t bytes() const;

 private:
  // Constant after construction.
  DeviceRuntime& device_;
  const int64_t many_bytes_;

  // Guarded by mu_.
  mutable Mutex mu_;
  std::map<int64_t, std::vector<DeviceMemory>> free_
      ABSL_GUARDED_BY(mu_);                      // by size; none is empty
  int64_t kept_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of these
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace coordd
