#include "worker/gpu/plane/device_report.h"

#include "common/base/log.h"
#include "common/machine/build_info.h"
#include "common/machine/gpu_sharing.h"

namespace coordd {

void DeviceReport::NoteNccl(const MaybeNccl& nccl) {
  const std::string version = nccl.ok() ? NcclVersionText((*nccl)->nccl.version) : "";
  const std::string why_not(nccl.status().message());
  MutexLock lock(&mu_);
  if (facts_.nccl == version && facts_.no_nccl == why_not) return;
  facts_.nccl = version;
  facts_.no_nccl = why_not;
  ++version_;
}

void DeviceReport::NoteDevice(const DeviceIdentity& device, const std::string& mps) {
  {
    MutexLock lock(&mu_);
    if (facts_.device.has_value()) return;
    facts_.device = device;
    facts_.mps = mps;
    ++version_;
    knows_device_.store(true, std::memory_order_relaxed);
  }
  const std::string sharing = GpuSharing(device.model, mps);
  if (sharing.empty()) return;
  COORDD_LOG(kInfo, "this process has a part of its GPU ", device.uuid, " (", device.model,
             "): ", sharing);
}

}  // namespace coordd
