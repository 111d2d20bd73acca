// The buffers in which batches on a device are fused, and what NCCL knows of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/gpu/cuda/device_handles.h"
#include "worker/gpu/nccl/nccl_communicator.h"
#include "worker/gpu/nccl/nccl_memory.h"

namespace coordd {

// Touched by one thread, but for registered_bytes().
//
// Invariant: buffers keep their numbers 0, 1, 2, … and their addresses; what several communicators
// have registered counts once.
class NcclFusionBuffers {
 public:
  // `window`: the first buffer, which may be a symmetric window; nullptr: there is none.
  NcclFusionBuffers(std::shared_ptr<NcclRuntime> runtime, int32_t device,
                    std::shared_ptr<NcclMemory> window);

  // Plain device memory, or the window the first time, if that is large enough.
  absl::StatusOr<absl::Span<std::byte>> Allocate(int64_t size_bytes);
  // REQUIRES: there is one.
  absl::Span<std::byte> window() const { return buffers_.front(); }

  // Registers with the communicator what it has not been offered (ncclCommRegister), where NCCL
  // can. `offered`: so many it has been.
  void RegisterWith(NcclCommunicator& communicator, size_t* offered);
  // The communicator has the window.
  void NoteWindow(size_t* offered) {
    *offered = 1;
    NoteRegistered(0);
  }
  // Thread-safe.
  int64_t registered_bytes() const { return registered_bytes_.load(std::memory_order_relaxed); }

 private:
  void NoteRegistered(size_t buffer);

  const std::shared_ptr<NcclRuntime> runtime_;
  const int32_t device_;
  const std::shared_ptr<NcclMemory> window_;
  std::vector<DeviceMemory> memory_;
  std::vector<absl::Span<std::byte>> buffers_;  // that memory, behind the window if it is there
  bool window_given_ = false;                   // by Allocate
  size_t registered_ = 0;                       // buffers, with a communicator at least
  std::atomic<int64_t> registered_bytes_ = 0;
};

}  // namespace coordd
