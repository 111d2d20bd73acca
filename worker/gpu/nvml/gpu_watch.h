// How this rank's GPU is, asked of NVML off the step path: by a thread of its own, since a question
// may wait for the driver, for long where a GPU is broken. (io)
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "coordd/v1/types.pb.h"
#include "worker/gpu/nvml/nvml_api.h"

namespace coordd {

// Thread-safe. The thread "gpu-health" is started by Watch and sleeps until it is asked; XIDs are
// logged when they are seen.
class GpuWatch {
 public:
  // The device is asked once in this time at most.
  static constexpr absl::Duration kReadEvery = absl::Seconds(1);
  // A thread that NVML does not return to by then is left to itself.
  static constexpr absl::Duration kEndLimit = absl::Seconds(2);

  // `clock` outlives it. `library`: for tests.
  explicit GpuWatch(Clock& clock, std::string library = kNvmlLibrary);
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  // Watches this GPU from now on, "GPU-…" as CUDA's driver tells it. For the one that is watched
  // already it does nothing.
  void Watch(const std::string& uuid);
  // The answer is in Latest before long, unless it was asked within kReadEvery.
  void Ask();
  // The latest reading; nullopt: no device, no NVML, or no answer yet.
  std::optional<v1::GpuHealth> Latest() const;

 private:
  struct Shared;

  const std::shared_ptr<Shared> shared_;  // the thread's, too: it may be left behind
  std::thread thread_;                    // guarded by its mutex
};

}  // namespace coordd
