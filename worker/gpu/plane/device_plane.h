// The data plane of tensors on GPUs, in one generation. (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/base/environment.h"
#include "common/machine/gpu_network.h"
#include "common/protocol/store.h"
#include "worker/execute/batch_job.h"
#include "worker/execute/process_set_table.h"
#include "worker/execute/tensor_job.h"
#include "worker/gpu/cuda/nvtx.h"
#include "worker/gpu/cuda/result_memory.h"
#include "worker/gpu/nccl/device_events.h"
#include "worker/gpu/nccl/nccl_backend.h"
#include "worker/gpu/nccl/stream_memory.h"
#include "worker/gpu/plane/device_agreement.h"
#include "worker/gpu/plane/device_graphs.h"
#include "worker/gpu/plane/device_seat.h"
#include "worker/gpu/plane/device_use.h"
#include "worker/gpu/plane/gpu_access.h"
#include "worker/interfaces/group_layout.h"

namespace coordd {

struct DevicePlaneOptions {
  int64_t generation = 0;
  int32_t default_device = 0;  // of a rank that takes part without a tensor: it has joined
  int64_t fusion_buffer_bytes = int64_t{128} << 20;
  std::string host;     // for people
  std::string machine;  // as NCCL tells machines apart
  GpuNetwork network;
  bool host_uses_rdma = true;  // the host's data plane may, between nodes
  Environment environment;     // with NCCL's variables, and NVTX's
  DeviceRules rules;
  bool symmetric_windows = false;  // the fusion buffer is one where all ranks of a set have it so
  NcclBackendOptions backend;
};

// What becomes of a batch of tensors that NCCL could carry (FitsNccl) is decided when it has been
// planned, and equally on all ranks of its set: NCCL carries it when every one of them has NCCL,
// else all stage it through host memory (DeviceAgreement).
//
// All of NCCL's batches are launched in the order in which they come, which is the same on all
// ranks (server/generation/device_order.h), whatever their process sets, since kernels of two
// communicators that are launched in different orders on two ranks can wait for each other on the
// device. They run one behind the other on one stream, so one fusion buffer serves them all:
// packing, the collective and unpacking are enqueued together, and nothing waits on the host. A
// Work is enqueued then, and complete when the device is through.
//
// The thread "device" is started by the first batch, does all of that (device_plane_run.cc), and
// sleeps while nothing is under way. A thread that waits for a tensor of its own takes the seat, if
// it is free, and launches it itself (DriveFor): to wake the other one, and to be woken by it,
// takes longer than a launch. Methods are thread-safe.
class DevicePlane {
 public:
  struct Hooks {
    // Of every batch, once, with its status; its payload is unpacked.
    std::function<void(std::unique_ptr<BatchJob>)> finished;
    // To the host's data plane: batches that are staged, and those whose sizes are wanted
    // (sizes_only), which come back through HostDone.
    std::function<void(std::unique_ptr<BatchJob>)> to_host;
    // To the stager; it comes back through the argument.
    std::function<void(std::unique_ptr<BatchJob>, std::function<void(std::unique_ptr<BatchJob>)>)>
        stage;
    // The host's part of hierarchical allreduces (Hierarchy::exchange): among these ranks, on a
    // lane and in a group of its number that nothing else uses.
    std::function<void(LaneId, RankList)> open_exchanges;
    std::function<void(LaneId)> end_exchanges;
    std::function<void(CollectiveArgs, CollectiveBackend::Done)> exchange;
    // Nothing of a schedule's lane will go to the host any more.
    std::function<void(LaneId)> end_lane;
    // The name of a tensor may be submitted again.
    std::function<void(const TensorSpec&)> free_name;
  };

  // `access`, `store` (the generation's) and `clock` outlive it.
  DevicePlane(DevicePlaneOptions options, const GroupLayout& layout, GpuAccess& access,
              Store& store, Clock& clock, Hooks hooks);
  ~DevicePlane();  // Stop

  // On the caller's thread: checks the tensors of devices among these, records where their streams
  // are, and marks those that NCCL may carry (TensorJob::direct); the others are to be staged.
  // UNIMPLEMENTED: there are no devices here, and why. INVALID_ARGUMENT: an address or a device
  // that is not what the tensor says, or not this rank's. The message does not name the tensor;
  // `failed` gets its index. REQUIRES: no stream that is captured (graphs()).
  absl::Status Admit(absl::Span<TensorJob> jobs, size_t* failed);

  // Never blocks: what is launched is bounded by what was submitted. REQUIRES: FitsNccl.
  void Launch(std::unique_ptr<BatchJob> batch);
  // On the thread of a caller that waits for the work: Work::DriveBy. Does not make a backend.
  void DriveFor(const Work& work);
  // A batch with sizes_only: its sizes are here, or its status says why not.
  void HostDone(std::unique_ptr<BatchJob> batch);
  // Of the sets that this rank is in; as Executor's.
  void DefineGroup(ProcessSetId process_set, RankList ranks);
  void EndGroup(ProcessSetId process_set);
  // Of a schedule: nothing more of it will be launched.
  void EndLane(LaneId lane);

  // Idempotent: everything launched and everything new ends with ABORTED.
  void Abort();
  // The program has been told of a failure: streams that are held at the gate go on, and this
  // returns when they have (NcclGate::Pass).
  void Told();
  // The same, of the end of the generation: nothing is held any more, whatever is still aborted.
  void ToldOfTheEnd();
  // Aborts what is left and joins the thread. What is held at the gate stays there: the program may
  // not know yet. Idempotent; one thread.
  void Stop();

  // What coordd is to be told, unless that is what `told` stands for; then it stands for this. 0:
  // nothing. nullopt: nothing new.
  std::optional<v1::DeviceUse> UseBeyond(int64_t* told);

  int64_t fusion_bytes() const { return fusion_bytes_.load(std::memory_order_relaxed); }
  int64_t result_bytes();      // of results that the library has made, also of those that lie idle
  int64_t registered_bytes();  // of these, with NCCL

  // What programs capture into graphs takes no part in all of this.
  DeviceGraphs& graphs() { return graphs_; }

 private:
  struct Entry {
    std::unique_ptr<BatchJob> batch;  // nullptr: it is at the executor or the stager
    ProcessSetId process_set;
    LaneId lane;  // of the host's data plane
    int64_t sequence = 0;
    bool was_away = false;
    bool for_nccl = false;  // as agreed
  };
  // What can be done about an entry of the queue.
  enum class Next {
    kWait,         // for its own set, to travel over the host
    kWaitForNccl,  // and everything that NCCL launches waits for it
    kAway,         // it has gone away and will come back
    kGone,         // it is launched, or has ended
  };
  struct Running {
    std::unique_ptr<BatchJob> batch;
    std::vector<TensorMove> before, behind;
    std::optional<NvtxRange> range;  // while it is being enqueued, for a profiler
    bool done = false;
    absl::Status status;
  };
  struct Planned {
    std::unique_ptr<BatchJob> batch;
  };
  struct Returned {  // from the executor, or from the stager
    std::unique_ptr<BatchJob> batch;
  };
  struct GroupEnded {
    ProcessSetId process_set;
  };
  struct LaneEnded {
    LaneId lane;
  };
  struct LookAgain {};
  using Input = std::variant<Planned, Returned, GroupEnded, LaneEnded, LookAgain>;
  struct Call {};

  int64_t FusionBufferBytes() const;
  // This rank's device, from its first tensor on. INVALID_ARGUMENT: it has another.
  absl::Status ClaimDevice(int32_t device);
  void EnsureThread();
  // False: it takes nothing any more; `input` is then untouched.
  bool Put(Input&& input);
  void BeginAgreement(ProcessSetId process_set);
  DeviceClaim Claim();
  // Of the fusion buffer that is to be a symmetric window; 0: there is none.
  int64_t WindowBytes(const std::shared_ptr<NcclRuntime>& nccl, int32_t device);
  using MaybeNccl = absl::StatusOr<std::shared_ptr<NcclRuntime>>;
  void NoteDevice(const DeviceRuntime& devices, int32_t device, const MaybeNccl& nccl);
  void NoteNccl(const MaybeNccl& nccl) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteDecision(ProcessSetId process_set);
  void NoteNetPlugin();
  std::optional<absl::StatusOr<DeviceDecision>> DecisionOf(ProcessSetId process_set);

  // On the thread "device".
  void Run();
  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);

  // In the seat.
  // Takes what has come and moves it on; whether anything happened.
  bool TakeAndAdvance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  bool IsOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void Take(Planned& planned);
  void Take(Returned& returned);
  void Take(GroupEnded& ended);
  void Take(LaneEnded& ended) { ended_lanes_.insert(ended.lane); }
  void Take(LookAgain&) {}
  // Each returns whether anything happened.
  bool Advance();
  bool CollectDone();
  bool HoldsGate();
  // Its memory, until the backend ends.
  void Keep(const std::shared_ptr<Running>& running);
  // What stands before an entry in the queue.
  struct Before {
    bool nccl = false;                 // what NCCL may still have to launch
    std::set<LaneId> waiting, staged;  // whose batches wait; wait to travel over the host
  };
  Next NextOf(Entry& entry, const Before& before);
  void LaunchOnDevice(std::unique_ptr<BatchJob> batch);
  absl::Status TryLaunch(const std::shared_ptr<Running>& running);
  absl::StatusOr<absl::Span<std::byte>> ScratchFor(const BatchJob& batch);
  // Idle memory is given back while nothing is on the device that could come to be held.
  bool FreeIdleResults();
  absl::Status Prologue(Running& running, DeviceKernels& kernels, CudaStream stream);
  void BeginRange(Running& running);
  void Enqueued(Running& running, const std::shared_ptr<DeviceEvent>& event);
  absl::Status MakeBackend();
  // The set, with its hierarchy if that is what was agreed on.
  absl::Status DefineAtBackend(ProcessSetId process_set, NcclBackend& backend);
  // What the generation before has left: shrunk, where all ranks have agreed on it, or ended.
  void UseKept(const std::optional<absl::StatusOr<DeviceDecision>>& decision, NcclBackend& backend);
  void UseHierarchy(ProcessSetId process_set, int32_t ranks_per_node,
                    absl::Span<const int32_t> ranks, NcclBackend& backend);
  absl::StatusOr<std::shared_ptr<std::byte[]>> AllocateResult(int64_t bytes);
  void Finish(std::unique_ptr<BatchJob> batch, absl::Status status);
  std::shared_ptr<NcclBackend> backend();
  std::shared_ptr<ResultMemory> results();
  void WarnOnce(absl::string_view why);

  // Constant after construction.
  const DevicePlaneOptions options_;
  const GroupLayout layout_;
  GpuAccess& access_;
  Store& store_;
  Clock& clock_;
  const Hooks hooks_;

  // Thread-safe by itself.
  BoundedQueue<Input> inbox_;
  // One for what is in the inbox, so that the thread "device" can wait for it outside of the seat.
  BoundedQueue<Call> calls_;
  DeviceEvents events_;
  DeviceGraphs graphs_;
  std::atomic<bool> aborted_ = false;
  std::atomic<bool> told_of_the_end_ = false;
  std::atomic<bool> warned_ = false;
  std::atomic<bool> noted_device_ = false;  // in facts_
  std::atomic<int64_t> fusion_bytes_ = 0;

  // Guarded by mu_.
  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  int32_t device_ ABSL_GUARDED_BY(mu_) = -1;  // of this rank; -1: none yet
  std::map<ProcessSetId, RankList> sets_ ABSL_GUARDED_BY(mu_);
  std::map<ProcessSetId, std::unique_ptr<DeviceAgreement>> agreements_ ABSL_GUARDED_BY(mu_);
  std::optional<std::shared_ptr<NcclMemory>> window_ ABSL_GUARDED_BY(mu_);  // once asked for
  // Made on the thread "device", and ended with this object: not by whoever happens to have the
  // last reference, which may be the program's thread, since the end waits for NCCL's threads.
  std::shared_ptr<NcclBackend> backend_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<ResultMemory> results_ ABSL_GUARDED_BY(mu_);  // made with the backend
  std::thread thread_ ABSL_GUARDED_BY(mu_);
  DeviceFacts facts_ ABSL_GUARDED_BY(mu_);  // for coordd
  int64_t facts_version_ ABSL_GUARDED_BY(mu_) = 0;

  // The right to launch: of the thread "device" as a rule, else of a caller. Taken before mu_.
  DeviceSeat seat_;
  bool ended_ ABSL_GUARDED_BY(seat_) = false;

  // Touched in the seat.
  std::shared_ptr<NcclRuntime> runtime_;
  std::deque<Entry> queue_;       // in the order in which they were launched
  std::set<LaneId> ended_lanes_;  // of which the host is to be told
  std::deque<std::shared_ptr<Running>> running_;
  std::vector<std::shared_ptr<const void>> kept_;  // with the backend, for the same reason
  std::set<ProcessSetId> defined_;                 // at the backend
  std::set<ProcessSetId> with_exchanges_;          // of these, with a lane of the host's
  bool noted_net_plugin_ = false;
  const Nvtx* nvtx_ = nullptr;         // nullptr: no profiler listens
  std::set<ProcessSetId> nvtx_named_;  // categories
  absl::Span<std::byte> fusion_buffer_;
  StreamMemory large_scratch_;  // for what is larger than that buffer
  StreamMemory sink_;           // for what nobody reads
  IdentityMemory identities_;
};

}  // namespace coordd
