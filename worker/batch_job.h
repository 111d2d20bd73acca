// One planned batch: which bytes go into the collective and where its result goes. No thread, no
// backend: the executor and the completion thread drive it in turn.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/types.h"
#include "worker/aligned_buffer.h"
#include "worker/collective_backend.h"
#include "worker/fusion_layout.h"
#include "worker/tensor_job.h"

namespace coordd {

// The ranks' place, for shapes and averages.
struct BatchContext {
  Generation generation;
  int32_t rank = 0;
  int32_t size = 1;
};

// Life: [SizeExchange, when NeedsSizes()] -> Prepare -> ScratchBytes -> Payload -> Unpack. Not
// thread-safe; handed over between threads.
//
// One tensor travels in the caller's buffers. Several are packed into scratch memory (a fusion
// buffer) at the offsets of fusion_layout.h. A single reducescatter with a prescale factor needs
// scratch too, because its input is the caller's and its output smaller.
class BatchJob {
 public:
  // REQUIRES: at least one tensor; all agree as WorkerState checks.
  BatchJob(BatchContext context, LaneId lane, int64_t sequence, std::vector<TensorJob> tensors);

  LaneId lane() const { return lane_; }
  int64_t sequence() const { return sequence_; }
  CollectiveKind kind() const { return kind_; }
  std::vector<TensorJob>& tensors() { return tensors_; }
  const std::vector<TensorJob>& tensors() const { return tensors_; }

  // allgather and alltoall: ranks tell each other how many rows they give, before the payload.
  bool NeedsSizes() const {
    return kind_ == CollectiveKind::kAllgather || kind_ == CollectiveKind::kAlltoall;
  }
  // Its buffers are this object's.
  CollectiveArgs SizeExchange();

  // Computes the layout and the results' places. INTERNAL: sizes that no rank can have meant.
  // RESOURCE_EXHAUSTED: no memory for a result.
  // Does nothing the second time.
  absl::Status Prepare();
  // Scratch memory that Payload() needs; 0: none. After Prepare().
  int64_t ScratchBytes() const { return scratch_bytes_; }
  // Packs, and describes the collective. `scratch` (of at least ScratchBytes()) stays valid until
  // Unpack() has returned.
  CollectiveArgs Payload(absl::Span<std::byte> scratch);

  // Moves the results to where they belong, scaled, and fills each tensor's result.
  void Unpack();

  // Where the executor keeps what it lent to this batch.
  std::optional<int> fusion_buffer;  // index of it
  AlignedBuffer own_scratch;         // when no fusion buffer is large enough
  absl::Time launched_at;
  absl::Status status;

 private:
  // What one rank gives to one tensor of an allgather, or gets of a reducescatter, in bytes.
  using Parts = std::vector<std::vector<int64_t>>;  // [tensor][rank]

  bool fused() const { return tensors_.size() > 1; }
  // Scales what was reduced: the postscale factor, and the size for an average.
  void CopyResult(const TensorSpec& spec, std::byte* to, const std::byte* from,
                  int64_t bytes) const;
  absl::Status PrepareFlat();
  // Makes sure that the tensor has an output of `bytes` in which the backend may write.
  absl::Status PlaceOutput(TensorJob& tensor, int64_t bytes);
  absl::Status PrepareAllgather();
  absl::Status PrepareAlltoall();
  absl::Status PrepareReducescatter();
  void PackFlat();
  void PackReducescatter();
  void UnpackFlat();
  void UnpackAllgather();
  void UnpackReducescatter();
  CollectiveArgs Args() const;

  // Constant after construction.
  const BatchContext context_;
  const LaneId lane_;
  const int64_t sequence_;
  const CollectiveKind kind_;

  std::vector<TensorJob> tensors_;
  std::vector<int64_t> sent_sizes_, received_sizes_;
  std::vector<AlignedBuffer> discarded_;  // results that have no place of their own
  std::vector<std::byte*> places_;        // by tensor: where its result goes
  Parts parts_;
  FlatLayout flat_;
  BlockLayout blocks_;
  bool prepared_ = false;
  int64_t scratch_bytes_ = 0;
  absl::Span<std::byte> scratch_;
};

}  // namespace coordd
