// One planned batch: which bytes go into the collective and where its result goes. No thread, no
// backend: the executor and the completion thread drive it in turn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/protocol/tensor_spec.h"
#include "common/protocol/types.h"
#include "worker/base/aligned_buffer.h"
#include "worker/execute/batch_memory.h"
#include "worker/execute/fusion_layout.h"
#include "worker/execute/process_set_table.h"
#include "worker/execute/tensor_job.h"
#include "worker/execute/tensor_move.h"
#include "worker/execute/trace_recorder.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

struct DeviceDecision;  // worker/gpu/nccl/device_claim.h

// The ranks of a process set that execute a batch, and this rank's place among them.
struct BatchContext {
  Generation generation;
  int32_t rank = 0;  // index in the set
  int32_t size = 1;  // of the set
  ProcessSetId process_set;
  RankList ranks;  // of the set, in the job; nullptr: all
  // Nothing writes into an input before Unpack: what was interrupted can be executed again.
  bool keeps_inputs = false;

  // REQUIRES: a rank of the set.
  int32_t IndexOf(int32_t rank_in_job) const;
};

// Memory that a batch has from the executor, until it is unpacked.
struct ScratchLoan {
  int fusion_buffer = -1;  // -1: memory of the batch's own
};

// Life: [SizeExchange, when NeedsSizes()] -> Prepare -> ScratchBytes -> Payload -> Unpack. Not
// thread-safe; handed over between threads.
//
// One tensor travels in the caller's buffers. Several are packed into scratch memory (a fusion
// buffer) at the offsets of fusion_layout.h, or are read and written where they lie, if the backend
// takes them so (UseParts). Where inputs are to be kept, what would be reduced in place has its
// result in scratch memory until it is unpacked. A single reducescatter with a prescale factor
// needs scratch too, because its input is the caller's and its output smaller; so does a reduce on
// a rank that is not its root and has no output.
//
// What the data plane does not know is carried out by what it does: a join by a barrier, a send
// with its receive by a broadcast among the two.
//
// Of tensors that stay on a device (UseDevice) Payload and Unpack only note what is to be moved;
// TakeMoves gives it away, for a stream to do before and behind the collective. Unpack is called
// then, too, before the collective has run.
class BatchJob {
 public:
  // REQUIRES: at least one tensor; all agree as WorkerState checks.
  BatchJob(BatchContext context, LaneId lane, int64_t sequence, std::vector<TensorJob> tensors);

  LaneId lane() const { return lane_; }  // of the plan
  // Of the host's data plane. What NCCL could carry, and has been planned, has one of its own in
  // each process set, whether it does or not: sizes, and tensors that are staged after all, come in
  // an order of their own. What is scheduled shares its lane with nothing else.
  LaneId data_lane() const { return data_lane_; }
  int64_t sequence() const { return sequence_; }
  CollectiveKind kind() const { return kind_; }
  ProcessSetId process_set() const { return context_.process_set; }
  std::vector<TensorJob>& tensors() { return tensors_; }
  const std::vector<TensorJob>& tensors() const { return tensors_; }

  // Ranks tell each other how many rows they give, before the payload.
  bool NeedsSizes() const { return FirstDimensionMayDiffer(kind_); }
  // Its buffers are this object's.
  CollectiveArgs SizeExchange();

  // Computes the layout and the results' places. INTERNAL: sizes that no rank can have meant.
  // RESOURCE_EXHAUSTED: no memory for a result.
  // Does nothing the second time.
  absl::Status Prepare();
  // Whether the tensors may travel where they lie: several, of an allreduce, whose inputs are what
  // is reduced. After Prepare().
  bool CanUseParts() const;
  int64_t FlatBytes() const { return flat_.total_bytes; }
  // Instead of packing. Before ScratchBytes(). REQUIRES: CanUseParts().
  void UseParts();

  // Scratch memory that Payload() needs; 0: none. After Prepare().
  int64_t ScratchBytes() const { return scratch_bytes_; }
  // Packs, and describes the collective. `scratch` (of at least ScratchBytes()) stays valid until
  // Unpack() has returned.
  CollectiveArgs Payload(absl::Span<std::byte> scratch);

  // For texts: what is so many bytes behind the start of Payload()'s output.
  std::string ElementAt(int64_t offset_bytes) const;

  // Moves the results to where they belong, scaled, and fills each tensor's result. Does nothing
  // the second time.
  void Unpack();

  // Whether a factor other than 1 belongs to its first tensor.
  bool scales() const {
    const TensorSpec& spec = tensors_.front().spec();
    return Reduces(kind_) && (spec.prescale_factor != 1.0 || FactorOf(spec) != 1.0);
  }
  // NCCL does all of the scaling (CollectiveArgs::input_factor) of one tensor alone, where
  // NcclMultiplies says so. After UseDevice, before Prepare.
  void LeaveScalingToNccl(const DeviceDecision& decision);
  // The buffers of all tensors are memory of this device, and stay there. Before Prepare.
  void UseDevice(int32_t device, BatchMemory::AllocateOnDevice allocate,
                 BatchMemory::DiscardOnDevice discard) {
    memory_.UseDevice(device, std::move(allocate), std::move(discard));
  }
  bool on_device() const { return memory_.on_device(); }
  int32_t device() const { return memory_.device(); }
  std::vector<TensorMove> TakeMoves() { return memory_.TakeMoves(); }
  // After an interruption: what is to be submitted anew, as it was. Nothing else may follow.
  std::vector<TensorJob> TakeTensors();

  // What the executor lent to this batch.
  std::optional<ScratchLoan> scratch;
  AlignedBuffer own_scratch;  // when it was no fusion buffer
  BatchTimes times;
  bool begins_cycle = false;    // of a schedule
  bool staged = false;          // NCCL does not carry it, whatever the ranks of its set have
  absl::string_view algorithm;  // that carries its payload, a constant; empty: nobody has said
  absl::Status status;
  int32_t last_joined_rank = -1;  // the result of a join
  // Set when it ends: the thread that drives waits for the one tensor of this batch.
  bool for_this_thread = false;
  // The executor exchanges its sizes and hands it back: the payload is NCCL's.
  bool sizes_only = false;
  // Its results are there, in this batch's memory or the callers', though it may have been
  // interrupted before all ranks had theirs.
  bool has_result = false;
  bool counts_after_all = false;  // interrupted, and its results, unpacked, are the program's

 private:
  // What is not done here of it.
  struct Scaling {
    bool by_backend = false;    // of the result
    double input_factor = 1.0;  // then of all of it, by NCCL
  };
  // What one rank gives to one tensor of an allgather, or gets of a reducescatter, in bytes.
  using Parts = std::vector<std::vector<int64_t>>;  // [tensor][rank]

  bool fused() const { return tensors_.size() > 1; }
  // The rank that a rooted collective is for, or a broadcast, send or receive is from.
  int32_t RootIndex() const;
  bool is_root() const { return RootIndex() == context_.rank; }
  // Whether the tensor's value has to be made before the collective reads it.
  bool NeedsPacking(const TensorJob& tensor) const {
    if (in_parts_) return false;
    const bool copies_to_keep = keeps_input_ && on_device();
    return fused() || tensor.absent || PrescaleOf(tensor.spec()) != 1.0 || copies_to_keep;
  }
  // Where tensor `t` of a flat layout is while the collective runs.
  std::byte* FlatSlot(size_t t) const {
    return scratch_.empty() ? destinations_[t] : scratch_.data() + flat_.slots[t].offset_bytes;
  }
  // What is left to be done of it here.
  double PrescaleOf(const TensorSpec& spec) const {
    return scaling_.input_factor == 1.0 ? spec.prescale_factor : 1.0;
  }
  // The factor of a result of floating point, which the backend may scale with in passing.
  double FactorOf(const TensorSpec& spec) const;
  void AskToScale(CollectiveArgs& args);
  // Scales what was reduced: the postscale factor, and the size for an average.
  void CopyResult(const TensorSpec& spec, std::byte* to, const std::byte* from, int64_t bytes);
  absl::Status PrepareFlat();
  // Whether the collective would overwrite the only copy of an input.
  bool MustKeepInput(size_t t) const;
  // Makes sure that the tensor has an output of `bytes` in which the backend may write.
  absl::Status PlaceOutput(TensorJob& tensor, int64_t bytes);
  absl::Status PrepareAllgather();  // and gather
  absl::Status PrepareAlltoall();
  absl::Status PrepareReducescatter();
  void PackFlat();
  void PackReducescatter();
  absl::Span<std::byte> FlatBuffer() const;
  void PayloadOfReduction(CollectiveArgs& args);
  void PayloadInParts(CollectiveArgs& args);
  void PayloadOfAllgather(CollectiveArgs& args);
  void UnpackFlat();
  void UnpackJoin();
  void UnpackAllgather();
  void UnpackReducescatter();
  CollectiveArgs Args() const;

  // Constant after construction.
  const BatchContext context_;
  const LaneId lane_;
  const int64_t sequence_;
  const CollectiveKind kind_;
  const LaneId data_lane_;

  std::vector<TensorJob> tensors_;
  std::vector<int64_t> sent_sizes_, received_sizes_;
  absl::InlinedVector<std::byte*, 2> destinations_;  // by tensor: where its result goes
  Parts parts_;
  FlatLayout flat_;
  BlockLayout blocks_;
  bool prepared_ = false, unpacked_ = false;
  Scaling scaling_;
  BatchMemory memory_;
  int64_t scratch_bytes_ = 0;
  bool keeps_input_ = false;  // of a single tensor, reduced in place
  bool in_parts_ = false;
  absl::Span<std::byte> scratch_;
};

}  // namespace coordd
