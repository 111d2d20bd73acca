// What worker/gpu/nvml/nvml_api.h declares, beside the vendor's header: a difference does not
// compile.
#include "worker/gpu/nvml/nvml_api.h"

#include <gtest/gtest.h>
#include <nvml.h>

#include <cstddef>

#include "tests/worker/support/same_abi.h"

namespace coordd {
namespace {

// Of functions with newer ones beside them, which older drivers have not.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define EXPECT_SAME(ours, theirs) \
  static_assert(kSameAbi<decltype(NvmlFunctions::ours), decltype(&theirs)>)
EXPECT_SAME(Init, nvmlInit_v2);
EXPECT_SAME(Shutdown, nvmlShutdown);
EXPECT_SAME(ErrorString, nvmlErrorString);
EXPECT_SAME(DeviceGetHandleByUUID, nvmlDeviceGetHandleByUUID);
EXPECT_SAME(DeviceGetUtilizationRates, nvmlDeviceGetUtilizationRates);
EXPECT_SAME(DeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo);
EXPECT_SAME(DeviceGetMemoryInfoV2, nvmlDeviceGetMemoryInfo_v2);
EXPECT_SAME(DeviceGetPowerUsage, nvmlDeviceGetPowerUsage);
EXPECT_SAME(DeviceGetTemperature, nvmlDeviceGetTemperature);
EXPECT_SAME(DeviceGetTotalEccErrors, nvmlDeviceGetTotalEccErrors);
EXPECT_SAME(DeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetCurrentClocksThrottleReasons);
EXPECT_SAME(DeviceGetDeviceHandleFromMigDeviceHandle, nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
EXPECT_SAME(EventSetCreate, nvmlEventSetCreate);
EXPECT_SAME(EventSetFree, nvmlEventSetFree);
EXPECT_SAME(DeviceRegisterEvents, nvmlDeviceRegisterEvents);
EXPECT_SAME(EventSetWait, nvmlEventSetWait_v2);
#undef EXPECT_SAME

#define EXPECT_SAME_PLACE(ours, our_member, theirs, their_member)              \
  static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member)); \
  static_assert(sizeof(ours::our_member) == sizeof(theirs::their_member))
EXPECT_SAME_PLACE(NvmlUtilization, gpu, nvmlUtilization_t, gpu);
EXPECT_SAME_PLACE(NvmlUtilization, memory, nvmlUtilization_t, memory);
EXPECT_SAME_PLACE(NvmlMemory, total, nvmlMemory_t, total);
EXPECT_SAME_PLACE(NvmlMemory, free, nvmlMemory_t, free);
EXPECT_SAME_PLACE(NvmlMemory, used, nvmlMemory_t, used);
EXPECT_SAME_PLACE(NvmlMemoryV2, version, nvmlMemory_v2_t, version);
EXPECT_SAME_PLACE(NvmlMemoryV2, total, nvmlMemory_v2_t, total);
EXPECT_SAME_PLACE(NvmlMemoryV2, reserved, nvmlMemory_v2_t, reserved);
EXPECT_SAME_PLACE(NvmlMemoryV2, free, nvmlMemory_v2_t, free);
EXPECT_SAME_PLACE(NvmlMemoryV2, used, nvmlMemory_v2_t, used);
EXPECT_SAME_PLACE(NvmlEvent, device, nvmlEventData_t, device);
EXPECT_SAME_PLACE(NvmlEvent, type, nvmlEventData_t, eventType);
EXPECT_SAME_PLACE(NvmlEvent, data, nvmlEventData_t, eventData);
#undef EXPECT_SAME_PLACE
static_assert(sizeof(NvmlUtilization) == sizeof(nvmlUtilization_t));
static_assert(sizeof(NvmlMemory) == sizeof(nvmlMemory_t));
static_assert(sizeof(NvmlMemoryV2) == sizeof(nvmlMemory_v2_t));
static_assert(sizeof(NvmlEvent) == sizeof(nvmlEventData_t));

TEST(NvmlAbi, NumbersAreTheVendors) {
  EXPECT_EQ(kNvmlSuccess, NVML_SUCCESS);
  EXPECT_EQ(kNvmlNotSupported, NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(kNvmlNoPermission, NVML_ERROR_NO_PERMISSION);
  EXPECT_EQ(kNvmlNotFound, NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(kNvmlTimeout, NVML_ERROR_TIMEOUT);
  EXPECT_EQ(kNvmlGpuIsLost, NVML_ERROR_GPU_IS_LOST);
  EXPECT_EQ(kNvmlTemperatureGpu, NVML_TEMPERATURE_GPU);
  EXPECT_EQ(kNvmlErrorsCorrected, NVML_MEMORY_ERROR_TYPE_CORRECTED);
  EXPECT_EQ(kNvmlErrorsUncorrected, NVML_MEMORY_ERROR_TYPE_UNCORRECTED);
  EXPECT_EQ(kNvmlErrorsVolatile, NVML_VOLATILE_ECC);
  EXPECT_EQ(kNvmlEventXid, static_cast<uint64_t>(nvmlEventTypeXidCriticalError));
  EXPECT_EQ(NvmlMemoryV2::kVersion, static_cast<unsigned>(nvmlMemory_v2));
  const auto bit = [](long long vendors) { return static_cast<uint64_t>(vendors); };
  EXPECT_EQ(kNvmlSlowIdle, bit(nvmlClocksThrottleReasonGpuIdle));
  EXPECT_EQ(kNvmlSlowClocksSetting, bit(nvmlClocksThrottleReasonApplicationsClocksSetting));
  EXPECT_EQ(kNvmlSlowPowerCap, bit(nvmlClocksThrottleReasonSwPowerCap));
  EXPECT_EQ(kNvmlSlowHardware, bit(nvmlClocksThrottleReasonHwSlowdown));
  EXPECT_EQ(kNvmlSlowSyncBoost, bit(nvmlClocksThrottleReasonSyncBoost));
  EXPECT_EQ(kNvmlSlowThermal, bit(nvmlClocksThrottleReasonSwThermalSlowdown));
  EXPECT_EQ(kNvmlSlowHardwareThermal, bit(nvmlClocksThrottleReasonHwThermalSlowdown));
  EXPECT_EQ(kNvmlSlowPowerBrake, bit(nvmlClocksThrottleReasonHwPowerBrakeSlowdown));
  EXPECT_EQ(kNvmlSlowDisplay, bit(nvmlClocksThrottleReasonDisplayClockSetting));
}

}  // namespace
}  // namespace coordd
