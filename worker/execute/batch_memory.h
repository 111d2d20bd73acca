// Where a batch's bytes are moved and its results lie: on the host, or on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/tensor_spec.h"
#include "worker/execute/tensor_move.h"

namespace coordd {

// Not thread-safe: a part of BatchJob.
//
// Invariant: on the host a move has happened when the call returns; on a device it is noted, in
// order, until TakeMoves.
class BatchMemory {
 public:
  using AllocateOnDevice =
      std::function<absl::StatusOr<std::shared_ptr<std::byte[]>>(int64_t size_bytes)>;
  // A place for so many bytes that nobody will read, which batches may share since they run one
  // behind the other.
  using DiscardOnDevice = std::function<absl::StatusOr<std::byte*>(int64_t size_bytes)>;

  // From now on it is memory of this device.
  void UseDevice(int32_t device, AllocateOnDevice allocate, DiscardOnDevice discard);
  bool on_device() const { return device_ >= 0; }
  int32_t device() const { return device_; }  // -1: the host
  std::vector<TensorMove> TakeMoves() { return std::exchange(moves_, {}); }

  void Move(const TensorMove& move);
  void Copy(std::byte* to, const std::byte* from, int64_t bytes) {
    Move({.to = to, .from = from, .bytes = bytes});
  }
  void CopyAndScale(const TensorSpec& spec, double factor, std::byte* to, const std::byte* from,
                    int64_t bytes);
  // What changes nothing in the tensor's reduction.
  void FillIdentity(const TensorSpec& spec, std::byte* to, int64_t bytes);

  // For a result of the tensor. RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<std::byte[]>> Allocate(const TensorSpec& spec, int64_t bytes);
  // A place for what is thrown away, as long as this lives. RESOURCE_EXHAUSTED.
  absl::StatusOr<std::byte*> Discard(const TensorSpec& spec, int64_t bytes);

 private:
  int32_t device_ = -1;
  AllocateOnDevice allocate_;
  DiscardOnDevice discard_;
  std::vector<TensorMove> moves_;
  std::vector<std::shared_ptr<std::byte[]>> discarded_;  // results without a place of their own
};

}  // namespace coordd
