// Memory that NCCL allocates: symmetric windows are of nothing else, nor what NVLink's switch
// reduces in place. (io)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/gpu/nccl/nccl_runtime.h"

namespace coordd {

class NcclMemory {
 public:
  static bool Available(const NcclFunctions& nccl);     // 2.19
  static bool CanBeWindows(const NcclFunctions& nccl);  // 2.27
  // RESOURCE_EXHAUSTED: NCCL's words. REQUIRES: Available.
  static absl::StatusOr<std::shared_ptr<NcclMemory>> Allocate(std::shared_ptr<NcclRuntime> runtime,
                                                              int32_t device, int64_t size_bytes);
  ~NcclMemory();  // REQUIRES: no communicator knows it
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  absl::Span<std::byte> span() const { return span_; }

 private:
  NcclMemory(std::shared_ptr<NcclRuntime> runtime, int32_t device, absl::Span<std::byte> span)
      : runtime_(std::move(runtime)), device_(device), span_(span) {}

  const std::shared_ptr<NcclRuntime> runtime_;
  const int32_t device_;
  const absl::Span<std::byte> span_;
};

}  // namespace coordd
