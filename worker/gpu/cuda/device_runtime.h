// GPUs as coordd sees them: CUDA's driver with errors that say what failed and where, and handles
// that end by themselves. (io)
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/protocol/types.h"
#include "worker/gpu/cuda/cuda_api.h"

namespace coordd {

struct DeviceIdentity {
  int32_t index = -1;  // in this process; depends on CUDA_VISIBLE_DEVICES
  std::string uuid;    // "GPU-8f3c…": the device itself; "MIG-…": the slice of one
  std::string model;
  int capability_major = 0, capability_minor = 0;
  bool dma_buf = false;    // its memory can be given to other devices as DMA-BUF
  bool multicast = false;  // switches between devices can reduce for it
};

// Where an address points.
struct MemoryPlace {
  MemoryKind kind = MemoryKind::kHost;
  int32_t device = -1;  // of device memory
  bool pinned = false;  // host memory that the driver knows: copies to it do not wait
};

// Thread-safe. Outlives everything that it makes.
class DeviceRuntime {
 public:
  // NOT_FOUND: no driver. UNAVAILABLE: a driver that does not work here, or sees no device; its own
  // words. `library`: for tests.
  static absl::StatusOr<std::unique_ptr<DeviceRuntime>> Open(
      const std::string& library = kCudaDriverLibrary);
  ~DeviceRuntime();
  DeviceRuntime(const DeviceRuntime&) = delete;
  DeviceRuntime& operator=(const DeviceRuntime&) = delete;

  int32_t device_count() const { return static_cast<int32_t>(devices_.size()); }
  // REQUIRES: 0 <= device < device_count().
  const DeviceIdentity& identity(int32_t device) const {
    return devices_[static_cast<size_t>(device)].identity;
  }
  // Whether NVLink is between two devices, as far as the driver tells. REQUIRES: as identity.
  bool HasNvLink(int32_t from, int32_t to) const;
  const std::string& driver_version() const { return driver_version_; }  // "13.0"
  const CudaFunctions& cuda() const { return cuda_; }

  // Memory that the driver does not know is host memory. REQUIRES: within a DeviceScope.
  MemoryPlace PlaceOf(const void* address) const;

  // Whether what is enqueued on the stream becomes a part of a graph, instead of being run.
  // REQUIRES: within a DeviceScope.
  bool IsCaptured(CudaStream stream) const;
  // This thread is the runtime's own, and has no part in a graph that the program captures
  // meanwhile: by default a driver takes calls such as cuEventQuery for a mistake then, from
  // whatever thread, refuses them and ends the capture.
  void OwnThisThread() const { ExchangeCaptureMode(kCudaCaptureRelaxed); }
  // The capture mode of this thread from now on; returns what it was.
  int ExchangeCaptureMode(int mode) const;

  // OK, or "cuEventRecord on device 1 (GPU-…): an illegal memory access was encountered
  // (CUDA_ERROR_ILLEGAL_ADDRESS)"; RESOURCE_EXHAUSTED when memory is what lacks. `device` -1: none.
  absl::Status Check(CudaResult result, absl::string_view call, int32_t device) const;

  // By name, all that are asked for of a module of PTX. It is loaded once for each device and kept
  // to the end, and so are they: a driver may load a function when it is first asked for, and wait
  // for everything on the device to do so, which may not end while something is held. UNAVAILABLE:
  // the driver's words.
  using Functions = std::map<std::string, CudaFunction>;
  absl::StatusOr<const Functions*> FunctionsOf(int32_t device, const char* ptx,
                                               absl::Span<const char* const> names);

  // The device's primary context, which is the one that frameworks use; kept to the end.
  // INVALID_ARGUMENT: no such device.
  absl::StatusOr<CudaContext> ContextOf(int32_t device);

 private:
  struct Device {
    CudaDevice handle = 0;
    DeviceIdentity identity;
  };

  struct Module {
    CudaModule handle = nullptr;
    Functions functions;
  };

  explicit DeviceRuntime(const CudaFunctions& cuda) : cuda_(cuda) {}
  absl::Status FindDevices();

  // Constant after construction.
  const CudaFunctions cuda_;
  std::string driver_version_;
  std::vector<Device> devices_;

  // Guarded by mu_.
  Mutex mu_;
  std::vector<CudaContext> contexts_ ABSL_GUARDED_BY(mu_);  // by device; nullptr: not yet used

  // Guarded by modules_mu_, which is held while the driver loads.
  Mutex modules_mu_;
  std::map<std::pair<int32_t, const char*>, Module> modules_ ABSL_GUARDED_BY(modules_mu_);
};

// Makes a device the current one of this thread, and the one before current again when it ends: the
// thread may be the program's. What NCCL and the driver do on "the current device" happens within
// one.
class DeviceScope {
 public:
  static absl::StatusOr<DeviceScope> Enter(DeviceRuntime& runtime, int32_t device);
  DeviceScope(DeviceScope&& other) noexcept : runtime_(std::exchange(other.runtime_, nullptr)) {}
  DeviceScope& operator=(DeviceScope&&) = delete;
  ~DeviceScope();

 private:
  explicit DeviceScope(DeviceRuntime* runtime) : runtime_(runtime) {}
  DeviceRuntime* runtime_;
};

}  // namespace coordd
