// coordd's kernels on one device: copy, scale and cast of many tensors in one launch, and the gate.
// (io)
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/gpu/cuda/device_runtime.h"

namespace coordd {

// The text of kernels.ptx, which the driver compiles for the device at hand (and keeps).
extern const char kDeviceKernelsPtx[];

// One tensor of a launch. Addresses are of the device, or of pinned memory, and never overlap.
struct DeviceRow {
  const void* from = nullptr;
  void* to = nullptr;
  uint64_t count = 0;  // elements; bytes for Copy
};

// Methods enqueue and return. Thread-safe; copies are the same kernels.
class DeviceKernels {
 public:
  // Rows per launch: as many as fit into the arguments of one. More are split.
  static constexpr size_t kRowsPerLaunch = 128;

  // Loads all kernels, once for each device of a runtime (DeviceRuntime::FunctionsOf). UNAVAILABLE:
  // the driver's words, such as for a device that is too old (before Volta).
  static absl::StatusOr<DeviceKernels> Load(DeviceRuntime& runtime, int32_t device);

  absl::Status Copy(absl::Span<const DeviceRow> rows, CudaStream stream) const;
  // to[i] = from[i] * factor, computed as worker/numeric/reduce_kernels.h says of CopyScaled. In
  // place: to == from. Between types: float32 to and from float16 and bfloat16; INVALID_ARGUMENT:
  // others.
  absl::Status Scale(DataType from, DataType to, double factor, absl::Span<const DeviceRow> rows,
                     CudaStream stream) const;
  // What is behind it on the stream waits while *word (pinned memory) is 1. After `limit` it ends
  // the context instead, by a trap: every call of CUDA in this process fails from then on.
  absl::Status Gate(const std::atomic<uint32_t>* word, CudaStream stream,
                    absl::Duration limit = absl::InfiniteDuration()) const;
  // Holds a stream as Gate does; and where the word is 2 by then, every byte of `outputs`
  // (DeviceRow::to) becomes 0xff.
  absl::Status Seal(const std::atomic<uint32_t>* word, absl::Span<const DeviceRow> outputs,
                    CudaStream stream, absl::Duration limit = absl::InfiniteDuration()) const;

 private:
  DeviceKernels(DeviceRuntime* runtime, int32_t device, const DeviceRuntime::Functions* functions)
      : runtime_(runtime), device_(device), functions_(functions) {}
  absl::StatusOr<CudaFunction> Find(const std::string& name) const;
  absl::Status LaunchRows(CudaFunction function, const double* factor, int64_t bytes_per_count,
                          absl::Span<const DeviceRow> rows, CudaStream stream) const;

  // Constant after construction.
  DeviceRuntime* runtime_;
  int32_t device_;
  const DeviceRuntime::Functions* functions_;  // the runtime's
};

}  // namespace coordd
