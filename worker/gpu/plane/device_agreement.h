// The ranks of a process set agree on whether NCCL carries their tensors. (io)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/store.h"
#include "common/protocol/types.h"
#include "worker/gpu/nccl/device_claim.h"

namespace coordd {

// Each rank leaves its claim in the generation's store when it first sees a tensor of a device in
// the set; rank 0 of the set collects all of them and leaves what follows. So a rank may wait for
// those that have not come to such a tensor yet, for ever if they never do; but a batch that has
// been planned was submitted by all. On a thread of its own, "gpu-agree", which ends with it.
class DeviceAgreement {
 public:
  struct Place {
    ProcessSetId process_set;
    int32_t index = 0, size = 1;  // of this rank, in the set
  };
  // `store` and `clock` outlive it. `agreed` is called on its thread, once there is a decision.
  DeviceAgreement(Place place, DeviceClaim own, DeviceRules rules, Store& store, Clock& clock,
                  std::function<void()> agreed);
  ~DeviceAgreement();
  DeviceAgreement(const DeviceAgreement&) = delete;
  DeviceAgreement& operator=(const DeviceAgreement&) = delete;

  // nullopt: not yet. Errors: DecideOnDevices', or the store's; ABORTED: the generation is over.
  // Thread-safe.
  std::optional<absl::StatusOr<DeviceDecision>> decision() const;

 private:
  absl::StatusOr<DeviceDecision> Agree();
  // Waits for the key, in slices.
  absl::StatusOr<std::string> Get(const std::string& key);
  std::string Key(absl::string_view name) const;

  // Constant after construction.
  const Place place_;
  const DeviceClaim own_;
  const DeviceRules rules_;
  Store& store_;
  Clock& clock_;
  const std::function<void()> agreed_;

  // Guarded by mu_.
  mutable Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::StatusOr<DeviceDecision>> decision_ ABSL_GUARDED_BY(mu_);

  // Touched by the owner's thread.
  std::thread thread_;
};

}  // namespace coordd
