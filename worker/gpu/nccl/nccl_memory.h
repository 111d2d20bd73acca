// Memory that NCCL allocates: symmetric windows are of nothing else. (io)
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
  // Whether the library has what windows need (2.27).
  static bool Available(const NcclFunctions& nccl);
  // RESOURCE_EXHAUSTED: NCCL's words. REQUIRES: Available.
  static absl::StatusOr<std::shared_ptr<NcclMemory>> Allocate(std::shared_ptr<NcclRuntime> runtime,
                                                              int32_t device, int64_t size_bytes);
  ~NcclMemory();  // REQUIRES: no communicator has a window of it
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
