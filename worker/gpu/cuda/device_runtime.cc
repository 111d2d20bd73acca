#include "worker/gpu/cuda/device_runtime.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/machine/gpu_sharing.h"

namespace coordd {
namespace {

constexpr int kMaxNameBytes = 256;

// As nvidia-smi names it.
std::string UuidText(const CudaUuid& uuid, bool is_slice) {
  std::string text = is_slice ? "MIG" : "GPU";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    const bool starts_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    absl::StrAppend(&text, starts_group ? "-" : "", absl::Hex(uuid.bytes[i], absl::kZeroPad2));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceRuntime>> DeviceRuntime::Open(const std::string& library) {
  COORDD_ASSIGN_OR_RETURN(const CudaFunctions cuda, LoadCuda(library));
  std::unique_ptr<DeviceRuntime> runtime(new DeviceRuntime(cuda));
  COORDD_RETURN_IF_ERROR(runtime->FindDevices());
  return runtime;
}

absl::Status DeviceRuntime::FindDevices() {
  COORDD_RETURN_IF_ERROR(Check(cuda_.Init(0), "cuInit", -1));
  int version = 0, count = 0;
  COORDD_RETURN_IF_ERROR(Check(cuda_.DriverGetVersion(&version), "cuDriverGetVersion", -1));
  driver_version_ = absl::StrCat(version / 1000, ".", version % 1000 / 10);
  COORDD_RETURN_IF_ERROR(Check(cuda_.DeviceGetCount(&count), "cuDeviceGetCount", -1));
  if (count <= 0) return absl::UnavailableError("the driver sees no device");
  for (int i = 0; i < count; ++i) {
    Device device;
    DeviceIdentity& identity = device.identity;
    identity.index = i;
    CudaUuid uuid{};
    char model[kMaxNameBytes] = "";
    COORDD_RETURN_IF_ERROR(Check(cuda_.DeviceGet(&device.handle, i), "cuDeviceGet", -1));
    COORDD_RETURN_IF_ERROR(
        Check(cuda_.DeviceGetUuid(&uuid, device.handle), "cuDeviceGetUuid_v2", -1));
    COORDD_RETURN_IF_ERROR(
        Check(cuda_.DeviceGetName(model, sizeof(model), device.handle), "cuDeviceGetName", -1));
    for (auto [value, attribute] : {std::pair(&identity.capability_major, kCudaCapabilityMajor),
                                    std::pair(&identity.capability_minor, kCudaCapabilityMinor)}) {
      COORDD_RETURN_IF_ERROR(Check(cuda_.DeviceGetAttribute(value, attribute, device.handle),
                                   "cuDeviceGetAttribute", -1));
    }
    // Attributes that older drivers do not know.
    for (auto [has, attribute] : {std::pair(&identity.dma_buf, kCudaDmaBufSupported),
                                  std::pair(&identity.multicast, kCudaMulticastSupported)}) {
      int value = 0;
      *has =
          cuda_.DeviceGetAttribute(&value, attribute, device.handle) == kCudaSuccess && value == 1;
    }
    identity.model = model;
    identity.uuid = UuidText(uuid, !MigSliceOf(identity.model).empty());
    devices_.push_back(std::move(device));
  }
  MutexLock lock(&mu_);
  contexts_.resize(devices_.size(), nullptr);
  return absl::OkStatus();
}

DeviceRuntime::~DeviceRuntime() {
  for (const auto& [key, module] : modules_) {
    const auto scope = DeviceScope::Enter(*this, key.first);
    cuda_.ModuleUnload(module.handle);
  }
  MutexLock lock(&mu_);
  for (size_t i = 0; i < contexts_.size(); ++i)
    if (contexts_[i] != nullptr) cuda_.DevicePrimaryCtxRelease(devices_[i].handle);
}

bool DeviceRuntime::HasNvLink(int32_t from, int32_t to) const {
  int atomics = 0;
  return cuda_.DeviceGetP2PAttribute != nullptr &&
         cuda_.DeviceGetP2PAttribute(&atomics, kCudaPeerNativeAtomics,
                                     devices_[static_cast<size_t>(from)].handle,
                                     devices_[static_cast<size_t>(to)].handle) == kCudaSuccess &&
         atomics == 1;
}

MemoryPlace DeviceRuntime::PlaceOf(const void* address) const {
  const CudaPointer pointer = reinterpret_cast<CudaPointer>(address);
  MemoryPlace place;
  unsigned type = 0;
  if (cuda_.PointerGetAttribute(&type, kCudaPointerMemoryType, pointer) != kCudaSuccess)
    return place;
  place.pinned = type == kCudaMemoryHost;
  if (type != kCudaMemoryDevice) return place;
  int ordinal = -1;
  // Managed memory, which both sides can read, counts as device memory.
  if (cuda_.PointerGetAttribute(&ordinal, kCudaPointerDeviceOrdinal, pointer) != kCudaSuccess)
    return place;
  place.kind = MemoryKind::kCuda;
  place.device = ordinal;
  return place;
}

bool DeviceRuntime::IsCaptured(CudaStream stream) const {
  int status = kCudaNotCapturing;
  return cuda_.StreamIsCapturing != nullptr &&
         cuda_.StreamIsCapturing(stream, &status) == kCudaSuccess && status != kCudaNotCapturing;
}

int DeviceRuntime::ExchangeCaptureMode(int mode) const {
  if (cuda_.ThreadExchangeStreamCaptureMode != nullptr)
    cuda_.ThreadExchangeStreamCaptureMode(&mode);
  return mode;
}

absl::Status DeviceRuntime::Check(CudaResult result, absl::string_view call, int32_t device) const {
  if (result == kCudaSuccess) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  cuda_.GetErrorName(result, &name);
  cuda_.GetErrorString(result, &text);
  std::string message(call);
  if (device >= 0 && device < device_count())
    absl::StrAppend(&message, " on device ", device, " (", identity(device).uuid, ")");
  absl::StrAppend(&message, ": ",
                  text != nullptr ? text : "an error that the driver has no text for", " (",
                  name != nullptr ? name : absl::StrCat(result).c_str(), ")");
  return result == kCudaOutOfMemory ? absl::ResourceExhaustedError(message)
                                    : absl::UnavailableError(message);
}

absl::StatusOr<CudaContext> DeviceRuntime::ContextOf(int32_t device) {
  if (device < 0 || device >= device_count()) {
    return absl::InvalidArgumentError(absl::StrCat("device ", device, ", expected 0 to ",
                                                   device_count() - 1,
                                                   ": that many are visible to this process"));
  }
  const size_t index = static_cast<size_t>(device);
  MutexLock lock(&mu_);
  if (contexts_[index] == nullptr) {
    COORDD_RETURN_IF_ERROR(
        Check(cuda_.DevicePrimaryCtxRetain(&contexts_[index], devices_[index].handle),
              "cuDevicePrimaryCtxRetain", device));
  }
  return contexts_[index];
}

absl::StatusOr<const DeviceRuntime::Functions*> DeviceRuntime::FunctionsOf(
    int32_t device, const char* ptx, absl::Span<const char* const> names) {
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*this, device));
  MutexLock lock(&modules_mu_);
  Module& module = modules_[{device, ptx}];
  if (module.handle == nullptr) {
    COORDD_RETURN_IF_ERROR(Check(cuda_.ModuleLoadData(&module.handle, ptx),
                                 "cuModuleLoadData of coordd's kernels", device));
  }
  for (const char* name : names) {
    CudaFunction& function = module.functions[name];
    if (function != nullptr) continue;
    COORDD_RETURN_IF_ERROR(Check(cuda_.ModuleGetFunction(&function, module.handle, name),
                                 absl::StrCat("cuModuleGetFunction ", name), device));
  }
  return &module.functions;
}

absl::StatusOr<DeviceScope> DeviceScope::Enter(DeviceRuntime& runtime, int32_t device) {
  COORDD_ASSIGN_OR_RETURN(CudaContext context, runtime.ContextOf(device));
  COORDD_RETURN_IF_ERROR(
      runtime.Check(runtime.cuda().CtxPushCurrent(context), "cuCtxPushCurrent_v2", device));
  return DeviceScope(&runtime);
}

DeviceScope::~DeviceScope() {
  CudaContext popped = nullptr;
  if (runtime_ != nullptr) runtime_->cuda().CtxPopCurrent(&popped);
}

}  // namespace coordd
