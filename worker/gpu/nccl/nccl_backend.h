// Collectives on GPU memory, over NCCL.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "worker/gpu/cuda/device_handles.h"
#include "worker/gpu/cuda/device_kernels.h"
#include "worker/gpu/nccl/communicator_maker.h"
#include "worker/gpu/nccl/hierarchical_allreduce.h"
#include "worker/gpu/nccl/hierarchy_buffers.h"
#include "worker/gpu/nccl/host_waits.h"
#include "worker/gpu/nccl/late_watchdog.h"
#include "worker/gpu/nccl/nccl_communicator.h"
#include "worker/gpu/nccl/nccl_fusion_buffers.h"
#include "worker/gpu/nccl/nccl_gate.h"
#include "worker/gpu/nccl/nccl_memory.h"
#include "worker/gpu/nccl/nccl_watchdog.h"
#include "worker/gpu/nccl/program_memory.h"
#include "worker/gpu/nccl/stream_calls.h"
#include "worker/gpu/nccl/window_maker.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

struct NcclBackendOptions {
  std::string job;                               // for people
  int32_t device = 0;                            // of this rank, in this process
  absl::Duration init_limit = absl::Minutes(5);  // of each communicator
  bool register_buffers = true;                  // where NCCL can (ncclCommRegister)
  // A stream that is held at the gate for longer ends the context.
  absl::Duration gate_limit = absl::InfiniteDuration();
  // How long after a failure what runs is not ended, at most, since an exchange between nodes reads
  // what is on the host. They end when the host's data plane is aborted, too.
  absl::Duration exchange_limit = absl::Seconds(1);
  bool shrink = true;  // that of all ranks is kept for the next generation (ncclCommShrink)
  // The first fusion buffer, for groups that use it as a symmetric window; nullptr: plain memory.
  std::shared_ptr<NcclMemory> window;
  CommunicatorMakerOptions communicators;
  NcclWatchdogOptions watchdog;
};

// All lanes of a device form one order, since kernels of two communicators that are launched in
// different orders on two ranks can wait for each other on the device. So, unlike other backends:
// any two batches that two ranks have in common are launched in the same order on both, whatever
// their lanes (docs/design/nccl.md says who provides that order). They run one behind the other, on
// one stream.
//
// A communicator per group, made when its first batch is launched. Allreduces of a group that has a
// Hierarchy have one of the ranks on their node instead, and are enqueued as a whole all the same:
// the host's part between nodes takes its way beside the owner's thread. Once anything has failed,
// the generation's data plane is over: what is running and all that is launched later ends with
// that first error. What is running may then still have the buffers; what was to read the results
// is held back. NCCL lets go of them when everything it has launched has ended, which is not before
// PassGate where that includes something made of a result that is held, or where NCCL is older than
// 2.28.7; PassGate waits for it.
//
// Buffers are memory of the device. The input is ready when `ready_event` has happened; the result
// is there for a stream that waits for the event that `enqueued` gets, and for the host at `done`.
class NcclBackend final : public CollectiveBackend {
 public:
  // The bound of HostBackend's queue.
  static constexpr size_t kMaxQueuedBatches = 4096;
  // On the device at one time. When a rank is lost each of them ends by itself: its kernel starts,
  // looks 10,000 times for what does not come (25 ms over PCIe on an H100), and sees only then that
  // it is to end; meanwhile nobody can be told. A launch takes the host longer than a small
  // collective takes the device, so more would rarely be there. (A driver queues 1024 launches
  // before one blocks.) A hierarchical allreduce counts by its chunks, and may exceed it.
  static constexpr size_t kMaxEnqueued = 16;
  // Before NCCL 2.26 kernels look a million times.
  static constexpr size_t kMaxEnqueuedOfOld = 4;
  static constexpr int kVersionLooksOften = 22600;

  // `clock` outlives it.
  NcclBackend(std::shared_ptr<NcclRuntime> runtime, Clock& clock, NcclBackendOptions options);
  ~NcclBackend() override;

  int32_t device() const { return options_.device; }

  absl::string_view name() const override { return "nccl"; }
  bool Supports(MemoryKind memory, DataType dtype, CollectiveKind kind) const override;
  // Makes the stream and loads the kernels; communicators come later. `store` outlives it.
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) override;
  absl::Status DefineGroup(ProcessSetId group, absl::Span<const Rank> ranks) override;
  void EndGroup(ProcessSetId group) override;
  // The group's communicator makes options.window a symmetric window before its first batch: all
  // members call this before that, or none. REQUIRES: options.window.
  void UseWindow(ProcessSetId group);
  void EndLane(LaneId) override {}  // one order for all lanes: nothing is kept for each
  // Not all ranks of the group register memory with its communicators, so this one does not.
  // REQUIRES: as UseDirect.
  void LeaveUnregistered(ProcessSetId group) { groups_.at(group).registers = false; }
  // Memory of the program on this device, from the batch on whose `before` calls this, which is the
  // same one on all ranks of the group. A communicator to which it is a window (`windows` of that
  // batch) leaves it at that. UNAVAILABLE: NCCL's error, behind which there is no way on: the
  // others have theirs. REQUIRES: NCCL has ncclCommRegister.
  absl::Status RegisterMemory(ProcessSetId group, absl::Span<std::byte> memory);
  // Of this rank alone: nothing that is launched or will be uses it. `released`: when NCCL does not
  // know it any more, which is when the device is through with what was launched before; nothing
  // more is launched until then.
  void ReleaseMemory(ProcessSetId group, absl::Span<std::byte> memory,
                     std::function<void()> released);
  bool HasMemory(ProcessSetId group) const { return program_.Has(group); }
  // From now on its communicators are direct (NcclCommunicator::BeginDirect), on all of its ranks.
  // REQUIRES: the group exists, and has launched nothing.
  void UseDirect(ProcessSetId group);
  // The communicator of all ranks is made so, which all of them do or none. REQUIRES: nothing has
  // been launched there.
  void UseShrink(ShrinkPlan plan);
  // Ends what the generation before has left.
  void Discard(std::unique_ptr<KeptCommunicator> kept);
  // After Abort: the communicator of all ranks, if nothing was under way; else nullptr.
  // Thread-safe; gives it once.
  std::unique_ptr<KeptCommunicator> TakeKept();
  // From now on its allreduces are hierarchical, on all of its ranks. REQUIRES: the group exists,
  // its size is a multiple of ranks_per_node, and it has launched no allreduce.
  void UseHierarchy(ProcessSetId group, Hierarchy how);
  absl::Status Launch(CollectiveArgs args, Done done) override;
  bool Progress() override;
  // Plain device memory, or options.window the first time; registered with every communicator, but
  // for one that NCCL refuses.
  absl::StatusOr<absl::Span<std::byte>> AllocateFusionBuffer(int64_t size_bytes) override;
  // The registered bytes of these buffers and of the program; what several communicators have
  // registered counts once.
  // Thread-safe.
  int64_t registered_bytes() const { return buffers_.registered_bytes() + program_.bytes(); }
  void Abort() override;
  // Thread-safe: the program has been told of the failure, so what is held at the gate may go on.
  // Returns when it has (NcclGate::Pass).
  void PassGate();
  // Whether something is held there, by streams that nobody may end: this object has to stay.
  bool HoldsGate() const { return gate_ != nullptr && gate_->held(); }

 private:
  struct Channel {
    std::unique_ptr<CommunicatorMaker> maker;  // while it is being made
    std::shared_ptr<NcclCommunicator> communicator;
    size_t registered = 0;  // fusion buffers that it has been offered
    size_t program = 0;     // and memory of the program
    WindowMaker window;     // what is to be one before the next batch
  };
  struct Group {
    int32_t rank = 0, size = 1;
    Channel all;
    std::optional<Hierarchy> hierarchy;
    Channel node;           // of the ranks on this node, where there is a hierarchy
    int64_t exchanges = 0;  // between nodes, in the order of the stream
    bool direct = false;    // so are its communicators
    bool registers = true;  // memory, as all of its ranks do
  };
  struct Batch {
    CollectiveArgs args;
    Done done;
    std::shared_ptr<DeviceEvent> end;                     // once recorded
    std::unique_ptr<HierarchicalAllreduce> hierarchical;  // once begun, if it is one
    // Until then its thread polls for NCCL's launch of its last call, once it has asked.
    absl::Time spin_until = absl::InfiniteFuture();
  };

  // What is of the device.
  struct OnDevice {
    DeviceStream stream;
    DeviceKernels kernels;
    DeviceMemory scratch;  // four bytes, for barriers
  };

  static bool IsHierarchical(const Group& group, const CollectiveArgs& args) {
    return group.hierarchy.has_value() && args.kind == CollectiveKind::kAllreduce;
  }
  static Channel& ChannelOf(Group& group, const CollectiveArgs& args) {
    return IsHierarchical(group, args) ? group.node : group.all;
  }
  size_t MaxEnqueued() const {
    return runtime_->nccl.version < kVersionLooksOften ? kMaxEnqueuedOfOld : kMaxEnqueued;
  }
  NcclPlace PlaceOf(const CollectiveArgs& args, const Group& members) const;
  size_t EnqueuedWeight() const;
  // The front of the queue: makes its communicator, enqueues it, records its end. Each returns
  // whether anything happened.
  bool MoveFront();
  bool CanShrink() const {
    return options_.shrink && runtime_->nccl.functions.CommShrink != nullptr;
  }
  bool AwaitCommunicator(const CollectiveArgs& args, Group& group);
  bool AwaitWindow(Channel& channel);
  absl::Status RegisterWith(ProcessSetId id, const Group& group, Channel& channel);
  void LetGoOfMemory();
  absl::Status Enqueue(Batch& batch, Group& group);
  absl::Status BeginHierarchical(Batch& batch, Group& group);
  // What has been given to NCCL goes on, once NCCL is through with the last call; to its end.
  // False: NCCL is not.
  absl::StatusOr<bool> FinishEnqueuing(Batch& batch, NcclCommunicator& communicator);
  // Whether NCCL is still at the last call; waits for it as long as that is no worth sleeping for.
  absl::StatusOr<bool> AwaitLaunch(Batch& batch, NcclCommunicator& communicator);
  void FailWithExchanges();
  void PutBehindGate();
  absl::Status RecordEnd(Batch& batch);
  bool CollectEnded();
  bool FailAll();
  absl::StatusOr<std::shared_ptr<DeviceEvent>> FreshEvent();

  // Constant after construction.
  const std::shared_ptr<NcclRuntime> runtime_;
  const NcclBackendOptions options_;
  Clock& clock_;
  const std::shared_ptr<HostWaits> waits_;    // thread-safe by itself
  const std::shared_ptr<StreamCalls> calls_;  // Release is

  // Constant after Connect.
  std::unique_ptr<NcclGate> gate_;

  // Touched by the owner's thread.
  std::optional<OnDevice> on_device_;
  Store* store_ = nullptr;
  std::map<ProcessSetId, Group> groups_;
  std::optional<ShrinkPlan> shrink_;
  std::deque<Batch> queue_;     // the front one may be pending in NCCL
  bool front_pending_ = false;  // it has been given to NCCL, which has not enqueued all of it
  std::deque<Batch> enqueued_;  // in the order of the stream
  std::vector<std::shared_ptr<DeviceEvent>> free_events_;
  NcclFusionBuffers buffers_;
  ProgramMemory program_;
  HierarchyBuffers hierarchy_buffers_;
  absl::Time failed_at_ = absl::InfiniteFuture();

  // Thread-safe by itself.
  std::atomic<int64_t> batches_of_all_ = 0;  // on the communicator of all ranks
  LateWatchdog watchdog_;
};

}  // namespace coordd
