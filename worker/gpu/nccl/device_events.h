// Events of callers' streams, used again: making one costs more than recording it. (io)
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "worker/gpu/cuda/device_handles.h"

namespace coordd {

// Thread-safe.
class DeviceEvents {
 public:
  // Kept of each device; more are made when that many are in use at a time.
  static constexpr size_t kKeptMax = 1024;

  // An event that has been recorded on `stream`, the caller's alone until it lets go of it. Keeps
  // the runtime.
  absl::StatusOr<std::shared_ptr<DeviceEvent>> Record(const std::shared_ptr<DeviceRuntime>& runtime,
                                                      int32_t device, CudaStream stream) {
    COORDD_ASSIGN_OR_RETURN(std::shared_ptr<DeviceEvent> event, Unused(runtime, device));
    COORDD_RETURN_IF_ERROR(event->Record(stream));
    return event;
  }

 private:
  struct Ring {
    std::vector<std::shared_ptr<DeviceEvent>> events;
    size_t next = 0;  // used longest ago
  };

  absl::StatusOr<std::shared_ptr<DeviceEvent>> Unused(const std::shared_ptr<DeviceRuntime>& runtime,
                                                      int32_t device) {
    MutexLock lock(&mu_);
    Ring& ring = rings_[device];
    if (!ring.events.empty()) {
      const std::shared_ptr<DeviceEvent>& oldest = ring.events[ring.next];
      if (oldest.use_count() == 1) {
        ring.next = (ring.next + 1) % ring.events.size();
        return oldest;
      }
    }
    COORDD_ASSIGN_OR_RETURN(DeviceEvent made, DeviceEvent::Create(*runtime, device));
    std::shared_ptr<DeviceEvent> event(new DeviceEvent(std::move(made)),
                                       [runtime](DeviceEvent* ended) { delete ended; });
    if (ring.events.size() < kKeptMax) {
      // Behind the others: the oldest stays the next to be looked at.
      ring.events.insert(ring.events.begin() + static_cast<std::ptrdiff_t>(ring.next), event);
      ring.next = (ring.next + 1) % ring.events.size();
    }
    return event;
  }

  // Guarded by mu_.
  Mutex mu_;
  std::map<int32_t, Ring> rings_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
