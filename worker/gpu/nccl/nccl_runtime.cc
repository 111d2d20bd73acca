#include "worker/gpu/nccl/nccl_runtime.h"

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/machine/build_info.h"

namespace coordd {
namespace {

constexpr int kVersionNames = 22703;  // of communicators

}  // namespace

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
  const auto wishes = environment.find("COORDD_NCCL_CONFIG");
  if (wishes == environment.end()) return runtime;
  COORDD_ASSIGN_OR_RETURN(runtime->wishes, NcclWishes::Parse(wishes->second));
  const absl::string_view unknown = runtime->wishes.UnknownTo(runtime->nccl.version);
  if (!unknown.empty()) {
    COORDD_LOG(kWarning, "COORDD_NCCL_CONFIG: NCCL ", NcclVersionText(runtime->nccl.version),
               " has no ", unknown, ", which is left out");
  }
  return runtime;
}

NcclConfig NcclRuntime::Config(bool blocking, const std::string& name) const {
  NcclConfig config;
  config.blocking = blocking ? 1 : 0;
  wishes.PutInto(config, nccl.version);
  if (nccl.version >= kVersionNames && !name.empty()) {
    config.size = sizeof(NcclConfig);
    config.name = name.c_str();
  }
  return config;
}

}  // namespace coordd
