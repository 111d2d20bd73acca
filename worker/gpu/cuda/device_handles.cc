#include "worker/gpu/cuda/device_handles.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace coordd {

absl::StatusOr<DeviceStream> DeviceStream::Create(DeviceRuntime& runtime, int32_t device) {
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(runtime, device));
  int least = 0, greatest = 0;
  COORDD_RETURN_IF_ERROR(runtime.Check(runtime.cuda().CtxGetStreamPriorityRange(&least, &greatest),
                                       "cuCtxGetStreamPriorityRange", device));
  CudaStream stream = nullptr;
  COORDD_RETURN_IF_ERROR(runtime.Check(
      runtime.cuda().StreamCreateWithPriority(&stream, kCudaStreamNonBlocking, greatest),
      "cuStreamCreateWithPriority", device));
  return DeviceStream(&runtime, device, stream);
}

DeviceStream::~DeviceStream() {
  if (stream_ == nullptr) return;
  const auto scope = DeviceScope::Enter(*runtime_, device_);
  // The driver lets what is enqueued finish.
  runtime_->cuda().StreamDestroy(stream_);
}

absl::Status DeviceStream::Wait(CudaEvent event) {
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*runtime_, device_));
  return runtime_->Check(runtime_->cuda().StreamWaitEvent(stream_, event, 0), "cuStreamWaitEvent",
                         device_);
}

absl::StatusOr<DeviceEvent> DeviceEvent::Create(DeviceRuntime& runtime, int32_t device) {
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(runtime, device));
  CudaEvent event = nullptr;
  COORDD_RETURN_IF_ERROR(runtime.Check(runtime.cuda().EventCreate(&event, kCudaEventDisableTiming),
                                       "cuEventCreate", device));
  return DeviceEvent(&runtime, device, event);
}

DeviceEvent::~DeviceEvent() {
  if (event_ == nullptr) return;
  const auto scope = DeviceScope::Enter(*runtime_, device_);
  runtime_->cuda().EventDestroy(event_);
}

absl::Status DeviceEvent::Record(CudaStream stream) {
  // The default stream is that of the current device.
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*runtime_, device_));
  return runtime_->Check(runtime_->cuda().EventRecord(event_, stream), "cuEventRecord", device_);
}

absl::Status DeviceEvent::LetWait(CudaStream stream) const {
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*runtime_, device_));
  return runtime_->Check(runtime_->cuda().StreamWaitEvent(stream, event_, 0), "cuStreamWaitEvent",
                         device_);
}

absl::StatusOr<bool> DeviceEvent::Happened() const {
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*runtime_, device_));
  const CudaResult result = runtime_->cuda().EventQuery(event_);
  if (result == kCudaNotReady) return false;
  COORDD_RETURN_IF_ERROR(runtime_->Check(result, "cuEventQuery", device_));
  return true;
}

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(DeviceRuntime& runtime, int32_t device,
                                                    int64_t size_bytes) {
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(runtime, device));
  // The driver refuses to allocate nothing.
  const size_t size = static_cast<size_t>(std::max<int64_t>(size_bytes, 1));
  CudaPointer pointer = 0;
  COORDD_RETURN_IF_ERROR(
      runtime.Check(runtime.cuda().MemAlloc(&pointer, size), "cuMemAlloc_v2", device));
  return DeviceMemory(&runtime, device, /*pinned=*/false,
                      {reinterpret_cast<std::byte*>(pointer), static_cast<size_t>(size_bytes)});
}

absl::StatusOr<DeviceMemory> DeviceMemory::AllocatePinned(DeviceRuntime& runtime, int32_t device,
                                                          int64_t size_bytes) {
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(runtime, device));
  const size_t size = static_cast<size_t>(std::max<int64_t>(size_bytes, 1));
  void* pointer = nullptr;
  COORDD_RETURN_IF_ERROR(runtime.Check(
      runtime.cuda().MemHostAlloc(&pointer, size, kCudaHostPortable | kCudaHostDeviceMap),
      "cuMemHostAlloc", device));
  return DeviceMemory(&runtime, device, /*pinned=*/true,
                      {static_cast<std::byte*>(pointer), static_cast<size_t>(size_bytes)});
}

DeviceMemory::~DeviceMemory() {
  if (span_.data() == nullptr) return;
  const auto scope = DeviceScope::Enter(*runtime_, device_);
  if (pinned_) {
    runtime_->cuda().MemFreeHost(span_.data());
  } else {
    runtime_->cuda().MemFree(reinterpret_cast<CudaPointer>(span_.data()));
  }
}

absl::Status CopyAsync(DeviceRuntime& runtime, int32_t device, void* to, const void* from,
                       int64_t size_bytes, CudaStream stream) {
  if (size_bytes == 0) return absl::OkStatus();
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(runtime, device));
  return runtime.Check(runtime.cuda().MemcpyAsync(reinterpret_cast<CudaPointer>(to),
                                                  reinterpret_cast<CudaPointer>(from),
                                                  static_cast<size_t>(size_bytes), stream),
                       "cuMemcpyAsync", device);
}

}  // namespace coordd
