#include "worker/gpu/plane/device_buffers.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {

namespace {

absl::Status CheckDevice(DeviceRuntime& devices, int32_t device) {
  if (device >= 0 && device < devices.device_count()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("device ", device, ", expected 0 to ",
                                                 devices.device_count() - 1,
                                                 ": that many are visible to this process"));
}

// REQUIRES: within a DeviceScope.
absl::Status CheckPlace(DeviceRuntime& devices, const std::byte* address, int32_t device) {
  const MemoryPlace place = devices.PlaceOf(address);
  if (place.kind == MemoryKind::kCuda && place.device == device) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a buffer ",
                   place.kind == MemoryKind::kCuda ? absl::StrCat("on device ", place.device)
                                                   : std::string("that no device knows"),
                   ", expected memory of device ", device, ", which the tensor names"));
}

}  // namespace

absl::Status CheckBuffers(DeviceRuntime& devices, const TensorJob& job) {
  COORDD_RETURN_IF_ERROR(CheckDevice(devices, job.device));
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(devices, job.device));
  for (const std::byte* address : {job.input, static_cast<const std::byte*>(job.output)}) {
    if (address == nullptr || SizeBytes(job.spec()) == 0) continue;
    COORDD_RETURN_IF_ERROR(CheckPlace(devices, address, job.device));
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(DeviceRuntime& devices, int32_t device,
                         absl::Span<const std::byte> memory) {
  COORDD_RETURN_IF_ERROR(CheckDevice(devices, device));
  if (memory.data() == nullptr || memory.empty())
    return absl::InvalidArgumentError("no memory, expected one byte at least");
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(devices, device));
  COORDD_RETURN_IF_ERROR(CheckPlace(devices, memory.data(), device));
  return CheckPlace(devices, &memory.back(), device);
}

}  // namespace coordd
