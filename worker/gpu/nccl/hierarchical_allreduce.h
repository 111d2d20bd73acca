// One allreduce by NCCL within the nodes and by the host between them. (io)
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "worker/gpu/cuda/device_kernels.h"
#include "worker/gpu/nccl/hierarchical_plan.h"
#include "worker/gpu/nccl/host_waits.h"
#include "worker/gpu/nccl/nccl_communicator.h"
#include "worker/gpu/nccl/stream_calls.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

// What the allreduces of a group need besides the communicator of its node.
struct Hierarchy {
  // How many ranks of the group are on each node, following each other.
  int32_t ranks_per_node = 1;
  // The allreduces between nodes, on the host's data plane: a lane, and a group of the same number
  // with the ranks that are in this one's place in their nodes.
  LaneId lane;
  // Launches one; what it is done with is told, on any thread. Called on the thread of
  // StreamCalls, which must not be kept, nor call CUDA.
  std::function<void(CollectiveArgs, CollectiveBackend::Done)> exchange;
  int64_t chunk_bytes = HierarchyShape{}.chunk_bytes;
};

// Pinned memory for kHierarchySlots slices, of which one batch after the other makes use.
struct SliceBuffers {
  SliceBuffers(std::shared_ptr<NcclRuntime> runtime_in, DeviceMemory memory_in)
      : runtime(std::move(runtime_in)), memory(std::move(memory_in)) {}
  std::shared_ptr<NcclRuntime> runtime;
  DeviceMemory memory;
  int64_t slot_bytes() const {
    return static_cast<int64_t>(memory.span().size() / kHierarchySlots);
  }
};

// Where it runs.
struct HierarchyPlace {
  std::shared_ptr<NcclRuntime> runtime;
  std::shared_ptr<NcclCommunicator> node;  // ranks_per_node of them
  DeviceKernels* kernels = nullptr;
  CudaStream stream = nullptr;
  std::shared_ptr<StreamCalls> calls;
  std::shared_ptr<HostWaits> waits;
};

// Everything is enqueued on one stream, and takes its way without its owner: where a slice has come
// to the host its exchange begins (StreamCalls), and its end lets the stream go on (HostWaits).
//
// One thread, but for what is told of the exchanges. After a failure it has to stay until the
// stream has ended.
class HierarchicalAllreduce {
 public:
  // Slots of this size are needed.
  static int64_t SlotBytes(const CollectiveArgs& args, const Hierarchy& how);

  // `sequence`: of the first exchange; each chunk takes one. REQUIRES: `args` of an allreduce, as
  // NcclBackend takes them; slots of SlotBytes. RESOURCE_EXHAUSTED: no pinned memory.
  static absl::StatusOr<std::unique_ptr<HierarchicalAllreduce>> Create(
      HierarchyPlace place, const Hierarchy& how, const CollectiveArgs& args,
      std::shared_ptr<SliceBuffers> slots, int64_t sequence);
  ~HierarchicalAllreduce();
  HierarchicalAllreduce(const HierarchicalAllreduce&) = delete;
  HierarchicalAllreduce& operator=(const HierarchicalAllreduce&) = delete;

  int64_t chunks() const { return static_cast<int64_t>(chunks_.size()); }
  bool all_enqueued() const { return next_ == steps_.size(); }
  // Enqueues up to the next call of NCCL, which may be pending then, or to the end.
  absl::Status EnqueueNext();
  // Why an exchange failed; nullopt: none has.
  std::optional<absl::Status> failure() const;
  // The stream has come through: its words can be used again.
  void ReturnWaits();

 private:
  struct Outcome;

  HierarchicalAllreduce(HierarchyPlace place, const Hierarchy& how, const CollectiveArgs& args,
                        std::shared_ptr<SliceBuffers> slots, int64_t sequence);
  absl::Status EnqueueCall(const HierarchyCall& step);
  absl::Status EnqueueToHost(size_t chunk);
  absl::Status EnqueueFromHost(size_t chunk);
  HierarchySlice OwnSlice(size_t chunk) const;
  absl::Span<std::byte> SlotOf(size_t chunk) const;

  // Constant after construction.
  const HierarchyPlace place_;
  const Hierarchy how_;
  const absl::Span<const std::byte> input_;
  const absl::Span<std::byte> output_;
  const DataType dtype_;
  const ReduceOp op_;
  const int64_t first_sequence_;
  const std::shared_ptr<SliceBuffers> slots_;
  const std::vector<HierarchyChunk> chunks_;
  const std::vector<HierarchyCall> steps_;
  const std::shared_ptr<Outcome> outcome_;

  size_t next_ = 0;
  std::vector<size_t> waits_;  // by chunk
};

}  // namespace coordd
