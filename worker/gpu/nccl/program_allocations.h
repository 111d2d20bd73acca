// Memory of GPUs that NCCL allocates for the program. (io)
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "worker/gpu/nccl/nccl_memory.h"

namespace coordd {

// NVLink's switch reduces in place what NCCL has allocated and knows (ncclCommRegister), and no
// other memory. Of a process: memory outlives generations and workers. Thread-safe.
class ProgramAllocations {
 public:
  // Called once, when the first memory is asked for: a driver that has been initialised does not
  // survive a fork. Its error is that of all calls.
  using Open = std::function<absl::StatusOr<std::shared_ptr<NcclRuntime>>()>;
  explicit ProgramAllocations(Open open) : open_(std::move(open)) {}

  // INVALID_ARGUMENT: no such device, or fewer than 1 byte. UNIMPLEMENTED: NCCL before 2.19.
  // RESOURCE_EXHAUSTED: NCCL's words. Otherwise as Open.
  absl::StatusOr<void*> Allocate(int32_t device, int64_t size_bytes);
  // REQUIRES: nothing on a device uses it. Waits for communicators that end. INVALID_ARGUMENT:
  // Allocate has not given it. FAILED_PRECONDITION: a communicator knows it; it stays.
  absl::Status Free(const void* memory);
  // Of what begins there; 0: Allocate has given nothing that does.
  int64_t SizeOf(const void* memory);

 private:
  absl::StatusOr<std::shared_ptr<NcclRuntime>> Runtime();

  // Constant after construction.
  const Open open_;

  // Guarded by mu_.
  Mutex mu_;
  std::optional<absl::StatusOr<std::shared_ptr<NcclRuntime>>> runtime_ ABSL_GUARDED_BY(mu_);
  std::map<const void*, std::shared_ptr<NcclMemory>> memory_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
