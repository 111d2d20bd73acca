#include "worker/gpu/nvml/nvml_gpu.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/gpu/nvml/nvml_words.h"

namespace coordd {
namespace {

// What a driver has no answer for may be all ones; coordd takes no more than this.
int64_t Counted(uint64_t value) {
  constexpr uint64_t kMax = 1'000'000'000'000'000'000;
  return static_cast<int64_t>(std::min(value, kMax));
}

constexpr int kEventsAtOnce = 16;  // what has come beyond that comes with the next look

}  // namespace

absl::StatusOr<std::unique_ptr<NvmlGpu>> NvmlGpu::Open(const std::string& library,
                                                       const std::string& uuid) {
  COORDD_ASSIGN_OR_RETURN(const NvmlFunctions nvml, LoadNvml(library));
  const NvmlResult begun = nvml.Init();
  if (begun != kNvmlSuccess)
    return absl::UnavailableError(absl::StrCat("nvmlInit: ", nvml.ErrorString(begun)));
  auto gpu = std::unique_ptr<NvmlGpu>(new NvmlGpu(nvml));
  COORDD_RETURN_IF_ERROR(gpu->Find(uuid));
  gpu->ListenForXids();
  return gpu;
}

NvmlGpu::~NvmlGpu() {
  if (events_ != nullptr) nvml_.EventSetFree(events_);
  nvml_.Shutdown();
}

absl::Status NvmlGpu::Find(const std::string& uuid) {
  const std::string bare(absl::StripPrefix(absl::StripPrefix(uuid, "GPU-"), "MIG-"));
  NvmlResult result = kNvmlNotFound;
  for (const char* prefix : {"GPU-", "MIG-"}) {
    uuid_ = absl::StrCat(prefix, bare);
    result = nvml_.DeviceGetHandleByUUID(uuid_.c_str(), &device_);
    if (result == kNvmlSuccess) break;
  }
  if (result != kNvmlSuccess) {
    return absl::UnavailableError(
        absl::StrCat("NVML does not know ", uuid, ": ", nvml_.ErrorString(result)));
  }
  const bool is_slice =
      nvml_.DeviceGetDeviceHandleFromMigDeviceHandle != nullptr &&
      nvml_.DeviceGetDeviceHandleFromMigDeviceHandle(device_, &whole_) == kNvmlSuccess;
  if (!is_slice) whole_ = device_;
  return absl::OkStatus();
}

void NvmlGpu::ListenForXids() {
  if (nvml_.EventSetCreate == nullptr || nvml_.EventSetFree == nullptr ||
      nvml_.DeviceRegisterEvents == nullptr || nvml_.EventSetWait == nullptr)
    return;
  if (nvml_.EventSetCreate(&events_) != kNvmlSuccess) {
    events_ = nullptr;
  } else if (nvml_.DeviceRegisterEvents(whole_, kNvmlEventXid, events_) != kNvmlSuccess) {
    nvml_.EventSetFree(std::exchange(events_, nullptr));
  }
}

v1::GpuHealth NvmlGpu::Read() const {
  v1::GpuHealth health;
  health.set_uuid(uuid_);
  NvmlUtilization rates;
  const NvmlResult load = nvml_.DeviceGetUtilizationRates(device_, &rates);
  if (load == kNvmlSuccess) {
    health.set_utilization_percent(static_cast<int32_t>(std::min(rates.gpu, 100u)));
  } else if (load != kNvmlNotSupported) {  // as it is for a slice
    health.set_trouble(std::string(absl::string_view(nvml_.ErrorString(load))
                                       .substr(0, static_cast<size_t>(kMaxGpuTroubleBytes))));
  }
  ReadMemory(&health);
  unsigned milliwatts = 0, celsius = 0;
  if (nvml_.DeviceGetPowerUsage(whole_, &milliwatts) == kNvmlSuccess)
    health.set_power_watts(std::min(milliwatts / 1e3, 1e6));
  if (nvml_.DeviceGetTemperature(whole_, kNvmlTemperatureGpu, &celsius) == kNvmlSuccess)
    health.set_temperature_celsius(static_cast<int32_t>(celsius));
  unsigned long long reasons = 0;
  if (nvml_.DeviceGetCurrentClocksThrottleReasons != nullptr &&
      nvml_.DeviceGetCurrentClocksThrottleReasons(whole_, &reasons) == kNvmlSuccess) {
    for (std::string& reason : SlowdownReasons(reasons))
      health.add_throttle_reasons(std::move(reason));
  }
  ReadErrors(&health);
  return health;
}

void NvmlGpu::ReadMemory(v1::GpuHealth* health) const {
  NvmlMemoryV2 memory;
  if (nvml_.DeviceGetMemoryInfoV2 != nullptr &&
      nvml_.DeviceGetMemoryInfoV2(device_, &memory) == kNvmlSuccess) {
    health->set_memory_used_bytes(Counted(memory.used));
    health->set_memory_total_bytes(Counted(memory.total));
    return;
  }
  NvmlMemory older;
  if (nvml_.DeviceGetMemoryInfo(device_, &older) != kNvmlSuccess) return;
  health->set_memory_used_bytes(Counted(older.used));
  health->set_memory_total_bytes(Counted(older.total));
}

void NvmlGpu::ReadErrors(v1::GpuHealth* health) const {
  unsigned long long count = 0;
  if (nvml_.DeviceGetTotalEccErrors(whole_, kNvmlErrorsCorrected, kNvmlErrorsVolatile, &count) ==
      kNvmlSuccess)
    health->set_ecc_corrected(Counted(count));
  if (nvml_.DeviceGetTotalEccErrors(whole_, kNvmlErrorsUncorrected, kNvmlErrorsVolatile, &count) ==
      kNvmlSuccess)
    health->set_ecc_uncorrected(Counted(count));
}

std::vector<uint64_t> NvmlGpu::TakeXids() const {
  std::vector<uint64_t> xids;
  NvmlEvent event;
  while (events_ != nullptr && xids.size() < kEventsAtOnce &&
         nvml_.EventSetWait(events_, &event, 0) == kNvmlSuccess) {
    if (event.type == kNvmlEventXid) xids.push_back(event.data);
  }
  return xids;
}

}  // namespace coordd
