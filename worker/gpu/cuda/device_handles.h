// Streams, events and memory of a device; each ends with its object. Every call is made within a
// DeviceScope: the runtime's own threads have no device that is current, and the driver documents
// of nearly all functions that they want one, also where the handle tells it. (io)
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/gpu/cuda/device_runtime.h"

namespace coordd {

// An order of work on a device, beside the program's own streams; at the highest priority, since
// others wait for what it does. Movable, one thread at a time.
class DeviceStream {
 public:
  static absl::StatusOr<DeviceStream> Create(DeviceRuntime& runtime, int32_t device);
  DeviceStream(DeviceStream&& other) noexcept
      : runtime_(other.runtime_),
        device_(other.device_),
        stream_(std::exchange(other.stream_, nullptr)) {}
  DeviceStream& operator=(DeviceStream&&) = delete;
  ~DeviceStream();

  CudaStream get() const { return stream_; }
  // What is enqueued here from now on starts when the event has happened.
  absl::Status Wait(CudaEvent event);

 private:
  DeviceStream(DeviceRuntime* runtime, int32_t device, CudaStream stream)
      : runtime_(runtime), device_(device), stream_(stream) {}
  DeviceRuntime* runtime_;
  int32_t device_;
  CudaStream stream_;
};

// A point in a stream. Movable, one thread at a time; happened() of a recorded one: any thread.
class DeviceEvent {
 public:
  static absl::StatusOr<DeviceEvent> Create(DeviceRuntime& runtime, int32_t device);
  DeviceEvent(DeviceEvent&& other) noexcept
      : runtime_(other.runtime_),
        device_(other.device_),
        event_(std::exchange(other.event_, nullptr)) {}
  DeviceEvent& operator=(DeviceEvent&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(device_, other.device_);
    std::swap(event_, other.event_);
    return *this;
  }
  ~DeviceEvent();

  CudaEvent get() const { return event_; }
  // Everything enqueued on `stream` until now. REQUIRES: a stream of the same device.
  absl::Status Record(CudaStream stream);
  // What is enqueued on `stream` from now on starts when what was recorded has happened. REQUIRES:
  // a stream of the same device. Any thread.
  absl::Status LetWait(CudaStream stream) const;
  // Asks without waiting. An error: what was recorded has failed on the device.
  absl::StatusOr<bool> Happened() const;

 private:
  DeviceEvent(DeviceRuntime* runtime, int32_t device, CudaEvent event)
      : runtime_(runtime), device_(device), event_(event) {}
  DeviceRuntime* runtime_;
  int32_t device_;
  CudaEvent event_;
};

// Memory of a device, or host memory that it can copy to and from without waiting; aligned to 256
// bytes. Movable.
class DeviceMemory {
 public:
  // Allocates plain device memory. RESOURCE_EXHAUSTED.
  static absl::StatusOr<DeviceMemory> Allocate(DeviceRuntime& runtime, int32_t device,
                                               int64_t size_bytes);
  // Allocates pinned host memory that kernels of `device` may read. RESOURCE_EXHAUSTED.
  static absl::StatusOr<DeviceMemory> AllocatePinned(DeviceRuntime& runtime, int32_t device,
                                                     int64_t size_bytes);
  DeviceMemory(DeviceMemory&& other) noexcept
      : runtime_(other.runtime_),
        device_(other.device_),
        pinned_(other.pinned_),
        span_(std::exchange(other.span_, {})) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  ~DeviceMemory();

  // The memory; for device memory, an address that only the device may follow.
  absl::Span<std::byte> span() const { return span_; }
  std::byte* data() const { return span_.data(); }

 private:
  DeviceMemory(DeviceRuntime* runtime, int32_t device, bool pinned, absl::Span<std::byte> span)
      : runtime_(runtime), device_(device), pinned_(pinned), span_(span) {}
  DeviceRuntime* runtime_;
  int32_t device_;
  bool pinned_;
  absl::Span<std::byte> span_;
};

// Enqueues a copy between any two places. Returns at once, but for host memory that is not pinned.
absl::Status CopyAsync(DeviceRuntime& runtime, int32_t device, void* to, const void* from,
                       int64_t size_bytes, CudaStream stream);

}  // namespace coordd
