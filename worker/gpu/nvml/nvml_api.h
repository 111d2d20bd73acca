// The part of NVML that coordd calls: types, numbers and functions as its documentation gives them,
// in our words, so that no vendor header is needed to build. tests/worker/gpu/nvml/nvml_abi_test.cc
// compares with the vendor's header where there is one. (io)
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace coordd {

inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

using NvmlResult = int;
using NvmlDevice = struct NvmlDeviceHandle*;
using NvmlEventSet = struct NvmlEventSetHandle*;

inline constexpr NvmlResult kNvmlSuccess = 0;
inline constexpr NvmlResult kNvmlNotSupported = 3;
inline constexpr NvmlResult kNvmlNoPermission = 4;
inline constexpr NvmlResult kNvmlNotFound = 6;
inline constexpr NvmlResult kNvmlTimeout = 10;
inline constexpr NvmlResult kNvmlGpuIsLost = 15;

inline constexpr int kNvmlTemperatureGpu = 0;
inline constexpr int kNvmlErrorsCorrected = 0;
inline constexpr int kNvmlErrorsUncorrected = 1;
inline constexpr int kNvmlErrorsVolatile = 0;  // since the driver was loaded
inline constexpr uint64_t kNvmlEventXid = 8;

// Bits of nvmlDeviceGetCurrentClocksThrottleReasons.
inline constexpr uint64_t kNvmlSlowIdle = 0x1;
inline constexpr uint64_t kNvmlSlowClocksSetting = 0x2;
inline constexpr uint64_t kNvmlSlowPowerCap = 0x4;
inline constexpr uint64_t kNvmlSlowHardware = 0x8;
inline constexpr uint64_t kNvmlSlowSyncBoost = 0x10;
inline constexpr uint64_t kNvmlSlowThermal = 0x20;
inline constexpr uint64_t kNvmlSlowHardwareThermal = 0x40;
inline constexpr uint64_t kNvmlSlowPowerBrake = 0x80;
inline constexpr uint64_t kNvmlSlowDisplay = 0x100;

struct NvmlUtilization {
  unsigned gpu = 0, memory = 0;  // percent of the last sampling period
};
struct NvmlMemory {  // of the first version, whose `used` has what the driver keeps for itself, too
  uint64_t total = 0, free = 0, used = 0;
};
struct NvmlMemoryV2 {
  unsigned version = kVersion;
  unsigned unused = 0;
  uint64_t total = 0, reserved = 0, free = 0, used = 0;

  static const unsigned kVersion;
};
inline constexpr unsigned NvmlMemoryV2::kVersion = sizeof(NvmlMemoryV2) | 2U << 24;
struct NvmlEvent {
  NvmlDevice device = nullptr;
  uint64_t type = 0;
  uint64_t data = 0;  // of an XID its number
  unsigned gpu_instance = 0, compute_instance = 0;
};

// Named as NVML's functions, less "nvml". Those from DeviceGetMemoryInfoV2 on are optional: nullptr
// in versions without them.
struct NvmlFunctions {
  NvmlResult (*Init)() = nullptr;
  NvmlResult (*Shutdown)() = nullptr;
  const char* (*ErrorString)(NvmlResult result) = nullptr;
  NvmlResult (*DeviceGetHandleByUUID)(const char* uuid, NvmlDevice* device) = nullptr;
  NvmlResult (*DeviceGetUtilizationRates)(NvmlDevice device, NvmlUtilization* rates) = nullptr;
  NvmlResult (*DeviceGetMemoryInfo)(NvmlDevice device, NvmlMemory* memory) = nullptr;
  NvmlResult (*DeviceGetPowerUsage)(NvmlDevice device, unsigned* milliwatts) = nullptr;
  NvmlResult (*DeviceGetTemperature)(NvmlDevice device, int sensor, unsigned* celsius) = nullptr;
  NvmlResult (*DeviceGetTotalEccErrors)(NvmlDevice device, int kind, int counter,
                                        unsigned long long* count) = nullptr;
  NvmlResult (*DeviceGetMemoryInfoV2)(NvmlDevice device, NvmlMemoryV2* memory) = nullptr;
  NvmlResult (*DeviceGetCurrentClocksThrottleReasons)(NvmlDevice device,
                                                      unsigned long long* reasons) = nullptr;
  NvmlResult (*DeviceGetDeviceHandleFromMigDeviceHandle)(NvmlDevice slice,
                                                         NvmlDevice* device) = nullptr;
  NvmlResult (*EventSetCreate)(NvmlEventSet* set) = nullptr;
  NvmlResult (*EventSetFree)(NvmlEventSet set) = nullptr;
  NvmlResult (*DeviceRegisterEvents)(NvmlDevice device, unsigned long long types,
                                     NvmlEventSet set) = nullptr;
  NvmlResult (*EventSetWait)(NvmlEventSet set, NvmlEvent* event, unsigned limit_ms) = nullptr;
};

// What stays open to the end of the process. NOT_FOUND: there is no NVML, or it lacks what it has
// had since CUDA 8; names both.
absl::StatusOr<NvmlFunctions> LoadNvml(const std::string& library = kNvmlLibrary);

}  // namespace coordd
