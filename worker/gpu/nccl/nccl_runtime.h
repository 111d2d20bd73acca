// NCCL and the GPUs of this process. (io)
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/environment.h"
#include "worker/gpu/cuda/device_runtime.h"
#include "worker/gpu/nccl/nccl_api.h"
#include "worker/gpu/nccl/nccl_wishes.h"

namespace coordd {

// What all communicators of a process need. Shared, since a thread that NCCL keeps in an abort may
// outlive whoever began it.
struct NcclRuntime {
  NcclLibrary nccl;
  std::shared_ptr<DeviceRuntime> device;
  std::string interface;  // NCCL_SOCKET_IFNAME; empty: NCCL chooses
  NcclWishes wishes;      // COORDD_NCCL_CONFIG

  // Of a communicator that is made now, with the wishes, which outlive it.
  // `name`: for NCCL's log and profilers, where it takes one (2.27); it outlives the communicator.
  NcclConfig Config(bool blocking, const std::string& name) const;

  // Why there is none is one phrase: what LoadNccl or DeviceRuntime::Open say. `cuda_library`: for
  // tests.
  static absl::StatusOr<std::shared_ptr<NcclRuntime>> Open(
      const Environment& environment, const std::string& cuda_library = kCudaDriverLibrary);
  // Opens NCCL with a driver that is open already.
  static absl::StatusOr<std::shared_ptr<NcclRuntime>> Open(const Environment& environment,
                                                           std::shared_ptr<DeviceRuntime> device);
};

}  // namespace coordd
