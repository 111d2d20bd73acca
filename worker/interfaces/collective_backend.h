// Collectives on contiguous buffers: the upper seam of the data plane. Host (over a Transport),
// NCCL, Loopback (one rank).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/protocol/store.h"
#include "common/protocol/types.h"
#include "worker/interfaces/buffer_parts.h"
#include "worker/interfaces/doorbell.h"
#include "worker/interfaces/group_layout.h"

namespace coordd {

class DeviceEvent;    // worker/gpu/cuda/device_handles.h
struct MappedLane;    // worker/node/mapped_lane.h
class NodeArena;      // worker/node/node_arena.h
class EdgeReport;     // worker/interfaces/edge_report.h
class DeviceKernels;  // worker/gpu/cuda/device_kernels.h
using CudaStream = struct CudaStreamHandle*;

// One fused batch as the backend sees it. Fusion, scaling and averaging are the executor's (an
// average arrives as kSum), and so is what has no data plane of its own: a join is a barrier, a
// send with its receive is a broadcast in a group of two. "Ranks" are those of the group, counted
// from 0 in its order. Blocks are given in bytes, one per rank, and are multiples of the element
// size.
struct CollectiveArgs {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType dtype = DataType::kUint8;  // kinds that do not reduce move bytes
  ReduceOp op = ReduceOp::kNone;      // kSum, kMin, kMax, kProduct for those that do
  LaneId lane;
  int64_t sequence = 0;  // of the batch on its lane: equal on all ranks
  ProcessSetId group;    // 0: all ranks, else one that DefineGroup made
  Rank root;             // broadcast, reduce, gather: its index in the group

  // Valid until `done`. They may be the same memory (in place), else they do not overlap.
  //   allreduce      input.size() == output.size(); in place: equal
  //   broadcast      output, on every rank; on the root it holds the value; input is empty
  //   allgather      input: this rank's block; output: all blocks in rank order (in place: input is
  //                  its place in output)
  //   reducescatter  input: all blocks in rank order; output: this rank's block (in place: output
  //   is
  //                  its place in input)
  //   reduce         input; output: on the root as the input (in place: equal), elsewhere empty
  //   gather         input: this rank's block; output: on the root all blocks in rank order (in
  //                  place: input is its place in output), elsewhere empty
  //   alltoall       input: blocks by destination; output: blocks by source; never in place
  //   barrier        both empty
  absl::Span<const std::byte> input;
  absl::Span<std::byte> output;
  // Of an allreduce, where TakesParts: the buffers lie in these runs, by offset, and what is
  // between them is nobody's; `input`, or `output`, is then a span of the whole's size at nullptr.
  // Both have the same runs, if both have some, and so on all ranks, if they have some.
  std::vector<InputPart> input_parts;
  std::vector<OutputPart> output_parts;
  std::vector<int64_t> input_block_bytes;   // reducescatter, alltoall
  std::vector<int64_t> output_block_bytes;  // allgather, alltoall, and on its root gather
  // Whether all members' blocks are of one size, and all members know: an alltoall's need not be
  // told.
  bool equal_blocks = false;
  // Of a reduction of floating point: what each element of the result is still to be multiplied
  // with (a postscale factor, an average's divisor). A backend that does so in passing, while the
  // element is in the cache, sets `scaled`; otherwise whoever has launched it does it. nullptr: not
  // asked for. Valid until `done`.
  double scale = 1.0;
  bool* scaled = nullptr;
  // Of a sum on a device: what each input is multiplied with before it is added, equal on all ranks
  // and as NcclMultiplies says. Nobody else does it.
  double input_factor = 1.0;
  // Set by a backend that has several ways when it begins: the name of the one that it takes, which
  // is a constant. nullptr: not asked for. Valid until `done`.
  absl::string_view* algorithm = nullptr;
  // Names for texts (checking_backend.h) what lies so many bytes behind the output's start, as in
  // "tensor a, element 3". Empty: nobody says. Valid until `done`.
  std::function<std::string(int64_t offset_bytes)> element_at;

  MemoryKind memory = MemoryKind::kHost;
  int32_t device = -1;  // CUDA device index in this process; -1: host
  // Of device memory. `ready`: recorded by the caller on its stream, behind what makes the input;
  // nullptr: it is there. `enqueued`: called at most once, from Launch or Progress and before
  // `done`, with the event behind which the result is there for other streams of the device.
  // `before` and `behind` enqueue what belongs in front of the collective (waits, packing) and
  // behind it (unpacking), on the stream of the collective; an error fails the generation.
  std::shared_ptr<DeviceEvent> ready;
  std::function<void(const std::shared_ptr<DeviceEvent>&)> enqueued;
  using OnStream = std::function<absl::Status(DeviceKernels&, CudaStream)>;
  OnStream before, behind;
  // Memory of the program of which all ranks of the group make symmetric windows of NCCL's, one
  // behind the other, before anything of this is enqueued (NcclCommunicator::RegisterWindow).
  std::vector<absl::Span<std::byte>> windows;
};

// The status of a collective that is started after Abort.
inline absl::Status CollectivesAborted() {
  return absl::AbortedError("the generation's collectives were aborted");
}

// One object per generation. One thread at a time owns it, the one in the driver's seat
// (driver_seat.h), which may be another each time; only Abort may be called from any thread.
class CollectiveBackend {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  virtual ~CollectiveBackend() = default;

  virtual absl::string_view name() const = 0;  // metric label: "host", "nccl", "loopback"
  virtual bool Supports(MemoryKind memory, DataType dtype, CollectiveKind kind) const = 0;

  // Whether buffers of the kind, of so many bytes, may be given in parts: worth it, since nothing
  // is packed then. This rank's affair: others may think otherwise. Once connected.
  virtual bool TakesParts(CollectiveKind /*kind*/, ProcessSetId /*group*/,
                          int64_t /*size_bytes*/) const {
    return false;
  }

  // Connects as Transport::Connect does, with its errors.
  virtual absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) = 0;

  // A subset of the ranks that executes collectives of its own, on lanes of its own. Every member
  // defines it before its first Launch there; nobody else does. INVALID_ARGUMENT: a group of this
  // number exists; the ranks are not strictly increasing ranks of the layout, this one among them.
  virtual absl::Status DefineGroup(ProcessSetId group, absl::Span<const Rank> ranks) = 0;
  // Forgets the group and the lane of its number. REQUIRES: nothing of it is in flight.
  virtual void EndGroup(ProcessSetId group) = 0;
  // Forgets another lane: nothing will be launched on it. REQUIRES: nothing of it is in flight.
  virtual void EndLane(LaneId lane) = 0;

  // Enqueues and returns; `done` is called once, from Progress() or from the destructor. Every rank
  // launches the same batches of a lane in the same order: that is what prevents deadlock. Batches
  // of different lanes progress independently; the batches of one lane are of one group.
  // INVALID_ARGUMENT: the arguments contradict each other; `done` is then never called.
  virtual absl::Status Launch(CollectiveArgs args, Done done) = 0;
  // Executes at once, in turns of Progress, what says the same as a collective of the lane before:
  // to launch it would take longer than what is to be said. Returns its status. nullopt: it has not
  // begun, and is to be launched; or `goes_on`, which is asked between two turns, and told whether
  // anything happened, has said no, and it goes on as if it were launched, with the `done` that
  // `launched` has given. REQUIRES: the arguments do not contradict each other.
  virtual std::optional<absl::Status> RunAgain(const CollectiveArgs& /*args*/,
                                               absl::FunctionRef<bool(bool moved)> /*goes_on*/,
                                               absl::FunctionRef<Done()> /*launched*/) {
    return std::nullopt;
  }

  // A lane on which a thread of the program runs collectives by itself, among these ranks of the
  // layout, strictly increasing, this one among them: nothing is launched on it. nullptr: they do
  // not share mapped memory, which all of them are told alike. RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::shared_ptr<MappedLane>> OpenMappedLane(
      LaneId /*lane*/, absl::Span<const Rank> /*ranks*/) {
    return nullptr;
  }
  // Closes a lane on which nothing runs any more, and whose last collective ended well.
  virtual void CloseMappedLane(std::shared_ptr<MappedLane> /*lane*/) {}

  // The arena from which memory comes that the node's ranks have mapped; to be used once connected,
  // if it has any memories then. nullptr: there is none.
  virtual std::shared_ptr<NodeArena> arena() const { return nullptr; }

  // Over what the other ranks are reached, as far as that is agreed. nullptr: nobody is told.
  virtual std::shared_ptr<EdgeReport> edges() const { return nullptr; }

  // Moves what can be moved without waiting; returns whether anything happened. The executor calls
  // it while anything is in flight, and now and then (with each heartbeat) when nothing is: a peer
  // that connects late, or the last bytes in a full socket, may still need this side to move.
  virtual bool Progress() = 0;

  // Where the owner may sleep until there is something to do, when Progress has found nothing.
  // None: it has to poll.
  virtual BellUse Bell() { return {}; }

  // Memory that takes part in collectives without a staging copy, for fusion buffers; 64-byte
  // aligned. Ends with the backend. RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<absl::Span<std::byte>> AllocateFusionBuffer(int64_t size_bytes) = 0;

  // Thread-safe, idempotent: pending and further `done`s get ABORTED.
  virtual void Abort() = 0;
};

}  // namespace coordd
