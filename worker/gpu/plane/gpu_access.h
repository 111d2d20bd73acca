// This process's GPUs and its NCCL, opened when the first tensor on a device is seen. (io)
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "worker/gpu/nccl/kept_communicator.h"
#include "worker/gpu/nccl/nccl_runtime.h"

namespace coordd {

// A driver that has been initialised does not survive a fork, so nothing is opened before it is
// needed.
struct GpuSeams {
  // Empty: this build has no CUDA.
  std::function<absl::StatusOr<std::shared_ptr<DeviceRuntime>>()> open_devices;
  // Empty: this build has no NCCL.
  std::function<absl::StatusOr<std::shared_ptr<NcclRuntime>>(std::shared_ptr<DeviceRuntime>)>
      open_nccl;
};

// Thread-safe; of a worker, for all of its generations.
class GpuAccess {
 public:
  explicit GpuAccess(GpuSeams seams) : seams_(std::move(seams)) {}

  // UNIMPLEMENTED: there are none, and why.
  absl::StatusOr<std::shared_ptr<DeviceRuntime>> Devices();
  // UNAVAILABLE: why there is none.
  absl::StatusOr<std::shared_ptr<NcclRuntime>> Nccl();

  // Between a generation's end and the next one's first batch: what the next communicator of all
  // ranks may be made of. The one before, if it is still there, ends.
  void Keep(std::unique_ptr<KeptCommunicator> kept, int64_t generation);
  // Whether there is one that has its ranks' GPUs as they are, and what the others are to know of
  // it.
  std::optional<KeptClaim> ClaimOfKept(int32_t device);
  // nullptr: there is none.
  std::unique_ptr<KeptCommunicator> TakeKept();

 private:
  absl::StatusOr<std::shared_ptr<DeviceRuntime>> OpenDevices() const;

  // Constant after construction.
  const GpuSeams seams_;

  // Guarded by mu_.
  Mutex mu_;
  std::optional<absl::StatusOr<std::shared_ptr<DeviceRuntime>>> devices_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::StatusOr<std::shared_ptr<NcclRuntime>>> nccl_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<KeptCommunicator> kept_ ABSL_GUARDED_BY(mu_);
  int64_t kept_of_ ABSL_GUARDED_BY(mu_) = 0;  // generation
};

}  // namespace coordd
