// What carries tensors in one generation, and goes with it.
#pragma once

#include <atomic>
#include <memory>

#include "common/protocol/store.h"
#include "worker/execute/executor.h"
#include "worker/execute/generation_end.h"
#include "worker/gpu/plane/device_plane.h"
#include "worker/interfaces/comm_numbers.h"
#include "worker/interfaces/edge_report.h"
#include "worker/runtime/data_plane.h"
#include "worker/runtime/point_to_point.h"

namespace coordd {

// Constant once made; what the members themselves allow from which thread they say. Works and
// callers may refer to it when its generation is over and it is stopped.
struct GenerationPlane {
  // Thread-safe: comms of the generation look at them.
  GenerationEnd end;
  CommNumbers comm_numbers;
  // Members of a comm that has failed here may still write to what its call was given.
  std::atomic<bool> comm_failed = false;
  // What launched batches refer to is declared before.
  std::unique_ptr<Store> store;  // keys of the generation
  std::unique_ptr<PointToPoint> messages;
  std::unique_ptr<Executor> executor;
  std::shared_ptr<DevicePlane> devices;  // Works of its tensors refer to it while it is there
  std::shared_ptr<EdgeReport> edges;     // the backend's
  std::unique_ptr<DataPlane> data_plane;

  GenerationPlane() = default;
  GenerationPlane(const GenerationPlane&) = delete;
  GenerationPlane& operator=(const GenerationPlane&) = delete;
  ~GenerationPlane() { Stop(); }

  // Aborts what is still running, joins the threads. Idempotent; one thread.
  void Stop() {
    if (devices != nullptr) devices->Stop();
    if (executor != nullptr) executor->Stop();
  }
};

}  // namespace coordd
