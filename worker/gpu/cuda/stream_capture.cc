#include "worker/gpu/cuda/stream_capture.h"

#include "common/base/status_macros.h"

namespace coordd {

RelaxedCapture::RelaxedCapture(const DeviceRuntime& runtime) : runtime_(runtime) {
  mode_ = runtime_.ExchangeCaptureMode(mode_);
}

RelaxedCapture::~RelaxedCapture() { runtime_.ExchangeCaptureMode(mode_); }

bool CanCapture(const DeviceRuntime& runtime) {
  const CudaFunctions& cuda = runtime.cuda();
  return cuda.StreamIsCapturing != nullptr && cuda.ThreadExchangeStreamCaptureMode != nullptr &&
         cuda.StreamBeginCapture != nullptr && cuda.StreamEndCapture != nullptr &&
         cuda.GraphDestroy != nullptr;
}

absl::StatusOr<std::shared_ptr<const void>> CaptureGraph(
    const std::shared_ptr<DeviceRuntime>& runtime, int32_t device, CudaStream stream,
    const std::function<absl::Status()>& enqueue) {
  const CudaFunctions& cuda = runtime->cuda();
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*runtime, device));
  COORDD_RETURN_IF_ERROR(runtime->Check(cuda.StreamBeginCapture(stream, kCudaCaptureRelaxed),
                                        "cuStreamBeginCapture_v2", device));
  absl::Status status = enqueue();
  CudaGraph graph = nullptr;
  const CudaResult ended = cuda.StreamEndCapture(stream, &graph);
  status.Update(runtime->Check(ended, "cuStreamEndCapture", device));
  std::shared_ptr<const void> made(graph, [runtime, device](const void* ending) {
    if (ending == nullptr) return;
    const auto within = DeviceScope::Enter(*runtime, device);
    runtime->cuda().GraphDestroy(static_cast<CudaGraph>(const_cast<void*>(ending)));
  });
  COORDD_RETURN_IF_ERROR(status);
  return made;
}

}  // namespace coordd
