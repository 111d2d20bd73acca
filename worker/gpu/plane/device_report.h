// What a rank has found out about its GPU and the way of its tensors, for coordd.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "worker/gpu/nccl/nccl_runtime.h"
#include "worker/gpu/plane/device_progress.h"
#include "worker/gpu/plane/device_use.h"

namespace coordd {

// Thread-safe; of one generation.
//
// Invariant: the version grows with each change of what is told, and with nothing else.
class DeviceReport {
 public:
  using MaybeNccl = absl::StatusOr<std::shared_ptr<NcclRuntime>>;

  void NoteNccl(const MaybeNccl& nccl);
  // The first one counts. `mps`: LookForMps. Where the process has a part of it, the log says so.
  void NoteDevice(const DeviceIdentity& device, const std::string& mps);
  // Costs a load.
  bool knows_device() const { return knows_device_.load(std::memory_order_relaxed); }
  void NoteDecision(ProcessSetId process_set, absl::StatusOr<DeviceDecision> decision) {
    MutexLock lock(&mu_);
    facts_.decisions.insert_or_assign(process_set, std::move(decision));
    ++version_;
  }
  void ForgetDecision(ProcessSetId process_set) {
    MutexLock lock(&mu_);
    if (facts_.decisions.erase(process_set) > 0) ++version_;
  }
  // What NCCL has loaded, which `loaded()` says. Asks once.
  template <typename F>
  void NoteNetPlugin(F loaded) {
    if (knows_plugin_.load(std::memory_order_relaxed) || knows_plugin_.exchange(true)) return;
    std::string plugin = loaded();
    if (plugin.empty()) return;
    MutexLock lock(&mu_);
    facts_.net_plugin = std::move(plugin);
    ++version_;
  }

  // What coordd is to be told, unless that is what `told` stands for; then it stands for this. 0:
  // nothing. nullopt: nothing new.
  std::optional<v1::DeviceUse> UseBeyond(int64_t* told) {
    MutexLock lock(&mu_);
    if (*told == version_) return std::nullopt;
    *told = version_;
    return DescribeDeviceUse(facts_);
  }

  // What is on the device.
  DeviceProgress& progress() { return progress_; }

 private:
  std::atomic<bool> knows_device_ = false;
  std::atomic<bool> knows_plugin_ = false;
  DeviceProgress progress_;  // thread-safe by itself

  // Guarded by mu_.
  Mutex mu_;
  DeviceFacts facts_ ABSL_GUARDED_BY(mu_);
  int64_t version_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace coordd
