#include "worker/gpu/nccl/stream_memory.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "worker/numeric/reduce_kernels.h"

namespace coordd {

absl::StatusOr<absl::Span<std::byte>> StreamMemory::Take(DeviceRuntime& runtime, int32_t device,
                                                         int64_t size_bytes) {
  const int64_t last = pieces_.empty() ? 0 : static_cast<int64_t>(pieces_.back().span().size());
  if (pieces_.empty() || last < size_bytes) {
    // The smaller ones together are no larger than twice the last.
    const int64_t wanted = std::max(size_bytes, last + last / 2);
    COORDD_ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Allocate(runtime, device, wanted));
    pieces_.push_back(std::move(memory));
  }
  return pieces_.back().span().first(static_cast<size_t>(size_bytes));
}

int64_t StreamMemory::size_bytes() const {
  int64_t bytes = 0;
  for (const DeviceMemory& piece : pieces_) bytes += static_cast<int64_t>(piece.span().size());
  return bytes;
}

absl::StatusOr<const std::byte*> IdentityMemory::Of(DataType dtype, ReduceOp op,
                                                    DeviceRuntime& runtime, int32_t device) {
  const auto key = std::pair(dtype, op);
  auto found = values_.find(key);
  if (found == values_.end()) {
    COORDD_ASSIGN_OR_RETURN(DeviceMemory memory,
                            DeviceMemory::AllocatePinned(runtime, device, kBytes));
    FillIdentity(dtype, op, memory.data(), kBytes / SizeOf(dtype));
    found = values_.emplace(key, std::move(memory)).first;
  }
  return found->second.data();
}

}  // namespace coordd
