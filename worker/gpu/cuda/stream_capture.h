// Capturing a stream into a CUDA graph. (io)
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/gpu/cuda/device_runtime.h"

namespace coordd {

// While it exists, this thread may do during a capture of the program's what a driver else takes
// for a mistake (OwnThisThread, for a thread that is the program's).
class RelaxedCapture {
 public:
  // `runtime` outlives it.
  explicit RelaxedCapture(const DeviceRuntime& runtime);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const DeviceRuntime& runtime_;
  int mode_ = kCudaCaptureRelaxed;
};

// Whether the driver has what CaptureGraph needs.
bool CanCapture(const DeviceRuntime& runtime);

// What `enqueue` puts on the stream becomes a graph, which ends with the last reference to it; the
// graph is not launched. UNAVAILABLE: the driver's words. REQUIRES: CanCapture, a stream of this
// device on which nothing else is enqueued meanwhile.
absl::StatusOr<std::shared_ptr<const void>> CaptureGraph(
    const std::shared_ptr<DeviceRuntime>& runtime, int32_t device, CudaStream stream,
    const std::function<absl::Status()>& enqueue);

}  // namespace coordd
