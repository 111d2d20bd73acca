// The collectives of a job of one rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "worker/base/aligned_buffer.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

// The backend in which every result is this rank's own input. REQUIRES: a world of one.
class LoopbackBackend final : public CollectiveBackend {
 public:
  ~LoopbackBackend() override;

  absl::string_view name() const override { return "loopback"; }
  bool Supports(MemoryKind memory, DataType dtype, CollectiveKind kind) const override;
  // INVALID_ARGUMENT: the world is larger.
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) override;
  absl::Status DefineGroup(ProcessSetId group, absl::Span<const Rank> ranks) override;
  void EndGroup(ProcessSetId) override {}
  void EndLane(LaneId) override {}
  absl::Status Launch(CollectiveArgs args, Done done) override;
  bool Progress() override;
  absl::StatusOr<absl::Span<std::byte>> AllocateFusionBuffer(int64_t size_bytes) override;
  void Abort() override { aborted_.store(true, std::memory_order_release); }

 private:
  // Thread-safe by itself.
  std::atomic<bool> aborted_ = false;

  // Touched by the owner's thread.
  std::vector<AlignedBuffer> fusion_buffers_;
  std::deque<std::pair<CollectiveArgs, Done>> launched_;
};

}  // namespace coordd
