#include "worker/gpu/plane/gpu_access.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {

absl::StatusOr<std::shared_ptr<DeviceRuntime>> GpuAccess::OpenDevices() const {
  if (!seams_.open_devices)
    return absl::UnimplementedError("device memory, but this build has no CUDA");
  auto devices = seams_.open_devices();
  if (devices.ok()) return devices;
  return absl::UnimplementedError(
      absl::StrCat("device memory, but this process has no CUDA: ", devices.status().message()));
}

absl::StatusOr<std::shared_ptr<DeviceRuntime>> GpuAccess::Devices() {
  MutexLock lock(&mu_);
  if (!devices_.has_value()) devices_ = OpenDevices();
  return *devices_;
}

absl::StatusOr<std::shared_ptr<NcclRuntime>> GpuAccess::Nccl() {
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<DeviceRuntime> devices, Devices());
  MutexLock lock(&mu_);
  if (nccl_.has_value()) return *nccl_;
  if (seams_.open_nccl) {
    nccl_ = seams_.open_nccl(std::move(devices));
  } else {
    nccl_ = absl::UnavailableError("this build has no NCCL");
  }
  return *nccl_;
}

void GpuAccess::Keep(std::unique_ptr<KeptCommunicator> kept, int64_t generation) {
  {
    MutexLock lock(&mu_);
    kept.swap(kept_);
    kept_of_ = generation;
  }
  kept.reset();  // waits for NCCL
}

std::optional<KeptClaim> GpuAccess::ClaimOfKept(int32_t device) {
  MutexLock lock(&mu_);
  if (kept_ == nullptr || kept_->place().device != device) return std::nullopt;
  return kept_->Describe(kept_of_);
}

std::unique_ptr<KeptCommunicator> GpuAccess::TakeKept() {
  MutexLock lock(&mu_);
  return std::move(kept_);
}

}  // namespace coordd
