#include "worker/gpu/plane/device_buffers.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {

absl::Status CheckBuffers(DeviceRuntime& devices, const TensorJob& job) {
  if (job.device >= devices.device_count()) {
    return absl::InvalidArgumentError(absl::StrCat("device ", job.device, ", expected 0 to ",
                                                   devices.device_count() - 1,
                                                   ": that many are visible to this process"));
  }
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(devices, job.device));
  for (const std::byte* address : {job.input, static_cast<const std::byte*>(job.output)}) {
    if (address == nullptr || SizeBytes(job.spec()) == 0) continue;
    const MemoryPlace place = devices.PlaceOf(address);
    if (place.kind == MemoryKind::kCuda && place.device == job.device) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a buffer ",
                     place.kind == MemoryKind::kCuda ? absl::StrCat("on device ", place.device)
                                                     : std::string("that no device knows"),
                     ", expected memory of device ", job.device, ", which the tensor names"));
  }
  return absl::OkStatus();
}

}  // namespace coordd
