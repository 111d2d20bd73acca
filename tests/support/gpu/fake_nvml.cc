// A stand-in of NVML, as a library that the loader opens instead of it: one GPU, or one MIG slice,
// whose values FAKE_NVML ("temperature=90,xid=79") and tests set.
#include <atomic>
#include <string>

#include "tests/support/gpu/fake_settings.h"
#include "worker/gpu/nvml/nvml_api.h"

namespace coordd {
namespace {

constexpr NvmlResult kUninitialized = 1, kInvalidArgument = 2;
constexpr unsigned long long kMiB = 1ULL << 20;
constexpr unsigned kReservedMiB = 512;  // what the driver keeps for itself

FakeSettings& Settings() {
  static auto* settings = new FakeSettings("FAKE_NVML", {{"mig", 0},
                                                         {"lost", 0},
                                                         {"init_error", 0},
                                                         {"utilization", 37},
                                                         {"memory_used_mib", 1024},
                                                         {"memory_total_mib", 81559},
                                                         {"power_mw", 71500},
                                                         {"temperature", 32},
                                                         {"throttle", 1},
                                                         {"ecc", 1},
                                                         {"ecc_corrected", 3},
                                                         {"ecc_uncorrected", 0},
                                                         {"xid", 0}});
  return *settings;
}
long Get(const char* name) { return Settings().Get(name); }

std::atomic<int> begun = 0;
std::atomic<long> reads = 0;
char gpu_mark, slice_mark, events_mark;  // their addresses are the handles
NvmlDevice Gpu() { return reinterpret_cast<NvmlDevice>(&gpu_mark); }
NvmlDevice Slice() { return reinterpret_cast<NvmlDevice>(&slice_mark); }
NvmlEventSet Events() { return reinterpret_cast<NvmlEventSet>(&events_mark); }
std::atomic<bool> listens = false;

// What every question about a device is answered first.
NvmlResult Check(NvmlDevice device, bool of_slices) {
  if (begun == 0) return kUninitialized;
  if (device != Gpu() && device != Slice()) return kInvalidArgument;
  if (Get("lost") != 0) return kNvmlGpuIsLost;
  return device == Slice() && !of_slices ? kNvmlNotSupported : kNvmlSuccess;
}

template <typename T>
NvmlResult Answer(NvmlDevice device, T* out, long value) {
  const NvmlResult result = Check(device, /*of_slices=*/false);
  if (result == kNvmlSuccess) *out = static_cast<T>(value);
  return result;
}

}  // namespace

extern "C" {

void fake_nvml_set(const char* name, long value) { Settings().Set(name, value); }
long fake_nvml_reads() { return reads; }
int fake_nvml_begun() { return begun; }

NvmlResult nvmlInit_v2() {
  if (const long error = Get("init_error"); error != 0) return static_cast<NvmlResult>(error);
  ++begun;
  return kNvmlSuccess;
}
NvmlResult nvmlShutdown() {
  if (begun == 0) return kUninitialized;
  --begun;
  return kNvmlSuccess;
}
const char* nvmlErrorString(NvmlResult result) {
  switch (result) {
    case kNvmlNotFound:
      return "Not Found";
    case kNvmlGpuIsLost:
      return "GPU is lost";
    case kNvmlNoPermission:
      return "Insufficient Permissions";
    default:
      return "Unknown Error";
  }
}

NvmlResult nvmlDeviceGetHandleByUUID(const char* uuid, NvmlDevice* device) {
  if (begun == 0) return kUninitialized;
  const std::string kind = Get("mig") != 0 ? "MIG-" : "GPU-";
  if (std::string(uuid).substr(0, kind.size()) != kind) return kNvmlNotFound;
  *device = Get("mig") != 0 ? Slice() : Gpu();
  return kNvmlSuccess;
}
NvmlResult nvmlDeviceGetDeviceHandleFromMigDeviceHandle(NvmlDevice slice, NvmlDevice* device) {
  if (slice != Slice()) return kInvalidArgument;
  *device = Gpu();
  return kNvmlSuccess;
}

NvmlResult nvmlDeviceGetUtilizationRates(NvmlDevice device, NvmlUtilization* rates) {
  ++reads;
  return Answer(device, &rates->gpu, Get("utilization"));
}
NvmlResult nvmlDeviceGetMemoryInfo(NvmlDevice device, NvmlMemory* memory) {
  const NvmlResult result = Check(device, /*of_slices=*/true);
  if (result != kNvmlSuccess) return result;
  memory->total = static_cast<uint64_t>(Get("memory_total_mib")) * kMiB;
  memory->used = static_cast<uint64_t>(Get("memory_used_mib") + kReservedMiB) * kMiB;
  memory->free = memory->total - memory->used;
  return kNvmlSuccess;
}
NvmlResult nvmlDeviceGetMemoryInfo_v2(NvmlDevice device, NvmlMemoryV2* memory) {
  if (memory->version != NvmlMemoryV2::kVersion) return kInvalidArgument;
  NvmlMemory older;
  const NvmlResult result = nvmlDeviceGetMemoryInfo(device, &older);
  if (result != kNvmlSuccess) return result;
  memory->total = older.total;
  memory->reserved = kReservedMiB * kMiB;
  memory->used = older.used - memory->reserved;
  memory->free = older.free;
  return kNvmlSuccess;
}
NvmlResult nvmlDeviceGetPowerUsage(NvmlDevice device, unsigned* milliwatts) {
  return Answer(device, milliwatts, Get("power_mw"));
}
NvmlResult nvmlDeviceGetTemperature(NvmlDevice device, int sensor, unsigned* celsius) {
  if (sensor != kNvmlTemperatureGpu) return kInvalidArgument;
  return Answer(device, celsius, Get("temperature"));
}
NvmlResult nvmlDeviceGetCurrentClocksThrottleReasons(NvmlDevice device,
                                                     unsigned long long* reasons) {
  return Answer(device, reasons, Get("throttle"));
}
NvmlResult nvmlDeviceGetTotalEccErrors(NvmlDevice device, int kind, int counter,
                                       unsigned long long* count) {
  if (counter != kNvmlErrorsVolatile) return kInvalidArgument;
  if (Get("ecc") == 0) return kNvmlNotSupported;
  return Answer(device, count,
                Get(kind == kNvmlErrorsCorrected ? "ecc_corrected" : "ecc_uncorrected"));
}

NvmlResult nvmlEventSetCreate(NvmlEventSet* set) {
  if (begun == 0) return kUninitialized;
  *set = Events();
  return kNvmlSuccess;
}
NvmlResult nvmlEventSetFree(NvmlEventSet set) {
  listens = false;
  return set == Events() ? kNvmlSuccess : kInvalidArgument;
}
NvmlResult nvmlDeviceRegisterEvents(NvmlDevice device, unsigned long long types, NvmlEventSet set) {
  // Of the GPU alone, as NVML says.
  if (device != Gpu() || types != kNvmlEventXid || set != Events()) return kInvalidArgument;
  listens = true;
  return kNvmlSuccess;
}
NvmlResult nvmlEventSetWait_v2(NvmlEventSet set, NvmlEvent* event, unsigned) {
  if (set != Events() || !listens) return kInvalidArgument;
  const long xid = Settings().Take("xid");
  if (xid == 0) return kNvmlTimeout;
  *event = {.device = Gpu(), .type = kNvmlEventXid, .data = static_cast<uint64_t>(xid)};
  return kNvmlSuccess;
}

}  // extern "C"
}  // namespace coordd
