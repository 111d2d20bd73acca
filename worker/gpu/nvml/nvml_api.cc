#include "worker/gpu/nvml/nvml_api.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/base/function_table.h"

namespace coordd {

absl::StatusOr<NvmlFunctions> LoadNvml(const std::string& library) {
  COORDD_ASSIGN_OR_RETURN(DynamicLibrary opened, DynamicLibrary::Open(library));
  FunctionTable table(opened);
  NvmlFunctions nvml;
  table.Required(nvml.Init, "nvmlInit_v2");
  table.Required(nvml.Shutdown, "nvmlShutdown");
  table.Required(nvml.ErrorString, "nvmlErrorString");
  table.Required(nvml.DeviceGetHandleByUUID, "nvmlDeviceGetHandleByUUID");
  table.Required(nvml.DeviceGetUtilizationRates, "nvmlDeviceGetUtilizationRates");
  table.Required(nvml.DeviceGetMemoryInfo, "nvmlDeviceGetMemoryInfo");
  table.Required(nvml.DeviceGetPowerUsage, "nvmlDeviceGetPowerUsage");
  table.Required(nvml.DeviceGetTemperature, "nvmlDeviceGetTemperature");
  table.Required(nvml.DeviceGetTotalEccErrors, "nvmlDeviceGetTotalEccErrors");
  table.Optional(nvml.DeviceGetMemoryInfoV2, "nvmlDeviceGetMemoryInfo_v2");
  // Under its first name, which newer versions have as well.
  table.Optional(nvml.DeviceGetCurrentClocksThrottleReasons,
                 "nvmlDeviceGetCurrentClocksThrottleReasons");
  table.Optional(nvml.DeviceGetDeviceHandleFromMigDeviceHandle,
                 "nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
  table.Optional(nvml.EventSetCreate, "nvmlEventSetCreate");
  table.Optional(nvml.EventSetFree, "nvmlEventSetFree");
  table.Optional(nvml.DeviceRegisterEvents, "nvmlDeviceRegisterEvents");
  table.Optional(nvml.EventSetWait, "nvmlEventSetWait_v2");
  if (table.missing_required().empty()) return nvml;
  return absl::NotFoundError(absl::StrCat(library, " has no ",
                                          absl::StrJoin(table.missing_required(), ", "),
                                          ", which NVML has had since CUDA 8"));
}

}  // namespace coordd
