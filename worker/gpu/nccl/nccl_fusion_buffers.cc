#include "worker/gpu/nccl/nccl_fusion_buffers.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace coordd {

NcclFusionBuffers::NcclFusionBuffers(std::shared_ptr<NcclRuntime> runtime, int32_t device,
                                     std::shared_ptr<NcclMemory> window)
    : runtime_(std::move(runtime)), device_(device), window_(std::move(window)) {
  if (window_ != nullptr) buffers_.push_back(window_->span());
}

absl::StatusOr<absl::Span<std::byte>> NcclFusionBuffers::Allocate(int64_t size_bytes) {
  if (window_ != nullptr && !window_given_ &&
      size_bytes <= static_cast<int64_t>(window_->span().size())) {
    window_given_ = true;
    return window_->span();
  }
  COORDD_ASSIGN_OR_RETURN(DeviceMemory memory,
                          DeviceMemory::Allocate(*runtime_->device, device_, size_bytes));
  memory_.push_back(std::move(memory));
  buffers_.push_back(memory_.back().span());
  return buffers_.back();
}

void NcclFusionBuffers::NoteRegistered(size_t buffer) {
  if (buffer < registered_) return;
  registered_ = buffer + 1;
  registered_bytes_.fetch_add(static_cast<int64_t>(buffers_[buffer].size()),
                              std::memory_order_relaxed);
}

void NcclFusionBuffers::RegisterWith(NcclCommunicator& communicator, size_t* offered) {
  if (!NcclRegisters(runtime_->nccl.functions)) return;
  for (; *offered < buffers_.size(); ++*offered) {
    const absl::Status status = communicator.Register(buffers_[*offered]);
    if (absl::IsAborted(status)) return;
    // Nobody else has to know: NCCL then copies, on this rank.
    if (status.ok()) {
      NoteRegistered(*offered);
    } else {
      COORDD_LOG(kWarning, "a fusion buffer is not registered: ", status.message());
    }
  }
}

}  // namespace coordd
