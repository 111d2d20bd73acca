#include "worker/gpu/nccl/nccl_runtime.h"

#include "common/base/status_macros.h"

namespace coordd {

absl::StatusOr<std::shared_ptr<NcclRuntime>> NcclRuntime::Open(const Environment& environment,
                                                               const std::string& cuda_library) {
  // The driver first: without one NCCL need not be looked for.
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<DeviceRuntime> device, DeviceRuntime::Open(cuda_library));
  return Open(environment, std::move(device));
}

absl::StatusOr<std::shared_ptr<NcclRuntime>> NcclRuntime::Open(
    const Environment& environment, std::shared_ptr<DeviceRuntime> device) {
  auto runtime = std::make_shared<NcclRuntime>();
  runtime->device = std::move(device);
  COORDD_ASSIGN_OR_RETURN(runtime->nccl, LoadNccl(environment));
  const auto interface = environment.find("NCCL_SOCKET_IFNAME");
  if (interface != environment.end()) runtime->interface = interface->second;
  return runtime;
}

}  // namespace coordd
