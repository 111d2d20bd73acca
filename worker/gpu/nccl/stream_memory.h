// Memory of a device that is used again and again, since to free it is to wait: for everything that
// is on the device, and that may be a held gate, which waits for the program, which waits to hear
// of a failure from the very thread that frees. (io)
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/gpu/cuda/device_handles.h"

namespace coordd {

// For what is used in the order of one stream, one after the other. One thread.
class StreamMemory {
 public:
  // At least so many bytes; what was given before stays valid. RESOURCE_EXHAUSTED.
  absl::StatusOr<absl::Span<std::byte>> Take(DeviceRuntime& runtime, int32_t device,
                                             int64_t size_bytes);
  int64_t size_bytes() const;

 private:
  std::vector<DeviceMemory> pieces_;  // each a half larger than the one before it, at least
};

// Pinned memory full of an operator's identity, which copies to a device fill a tensor with. One
// thread.
class IdentityMemory {
 public:
  static constexpr int64_t kBytes = int64_t{1} << 20;

  // kBytes of them, for good. RESOURCE_EXHAUSTED.
  absl::StatusOr<const std::byte*> Of(DataType dtype, ReduceOp op, DeviceRuntime& runtime,
                                      int32_t device);

 private:
  std::map<std::pair<DataType, ReduceOp>, DeviceMemory> values_;
};

}  // namespace coordd
