// The data plane of tensors on GPUs, in one generation. (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/protocol/store.h"
#include "worker/execute/batch_job.h"
#include "worker/execute/process_set_table.h"
#include "worker/execute/tensor_job.h"
#include "worker/gpu/nccl/device_events.h"
#include "worker/gpu/plane/batch_ranges.h"
#include "worker/gpu/plane/called_queue.h"
#include "worker/gpu/plane/device_agreements.h"
#include "worker/gpu/plane/device_backend.h"
#include "worker/gpu/plane/device_graphs.h"
#include "worker/gpu/plane/device_progress.h"
#include "worker/gpu/plane/device_queue.h"
#include "worker/gpu/plane/device_report.h"
#include "worker/gpu/plane/device_scratch.h"
#include "worker/gpu/plane/device_seat.h"
#include "worker/gpu/plane/gpu_access.h"
#include "worker/gpu/plane/lazy_thread.h"
#include "worker/gpu/plane/plane_options.h"
#include "worker/interfaces/group_layout.h"

namespace coordd {

// What becomes of a batch of tensors that NCCL could carry (FitsNccl) is
// decided when it has been planned, and equally on all ranks of its set: NCCL
// carries it when every one of them has NCCL, else all stage it through host
// memory (DeviceAgreement).
//
// All of NCCL's batches are launched in the order in which they come, which is
// the same on all ranks (server/generation/device_order.h), whatever their
// process sets, since kernels of two communicators that are launched in
// different orders on two ranks can wait for each other on the device. They run
// one behind the other on one stream, so one fusion buffer serves them all:
// packing, the collective and unpacking are enqueued together, and nothing
// waits on the host. A Work is enqueued then, and complete when the device is
// through.
//
// The thread "device" is started by the first batch, does all of that
// (device_plane_run.cc), and sleeps while nothing is under way. A thread that
// waits for a tensor of its own takes the seat, if it is free, and launches it
// itself (DriveFor): to wake the other one, and to be woken by it, takes longer
// than a launch. Methods are thread-safe.
class DevicePlane {
 public:
  struct Hooks {
    // Called for every batch, once, with its status; its payload is unpacked.
    std::function<void(std::unique_ptr<BatchJob>)> finished;
    // To the host's data plane: batches that are staged, and those whose sizes
    // are wanted (sizes_only), which come back through HostDone.
    std::function<void(std::unique_ptr<BatchJob>)> to_host;
    // To the stager; it comes back through the argument.
    std::function<void(std::unique_ptr<BatchJob>, std::function<void(std::unique_ptr<BatchJob>)>)>
        stage;
    // The host's part of hierarchical allreduces (Hierarchy::exchange): among
    // these ranks, on a lane and in a group of its number that nothing else
    // uses.
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

  // On the caller's thread: checks the tensors of devices among these, records
  // where their streams are, and marks those that NCCL may carry
  // (TensorJob::direct); the others are to be staged. UNIMPLEMENTED: there are
  // no devices here, and why. INVALID_ARGUMENT: an address or a device that is
  // not what the tensor says, or not this rank's. The message does not name the
  // tensor; `failed` gets its index. REQUIRES: no stream that is captured
  // (graphs()).
  absl::Status Admit(absl::Span<TensorJob> jobs, size_t* failed);

  // Never blocks: what is launched is bounded by what was submitted. REQUIRES:
  // FitsNccl.
  void Launch(std::unique_ptr<BatchJob> batch);
  // On the thread of a caller that waits for the work: Work::DriveBy. Does not
  // make a backend.
  void DriveFor(const Work& work);
  // A batch with sizes_only: its sizes are here, or its status says why not.
  void HostDone(std::unique_ptr<BatchJob> batch);
  // Defines a set that this rank is in, as Executor does.
  void DefineGroup(ProcessSetId process_set, RankList ranks);
  void EndGroup(ProcessSetId process_set);
  // Ends the lane of a schedule: nothing more of it will be launched.
  void EndLane(LaneId lane);

  // Memory of the program on a device that NCCL is to know, in the set's communicators, as long as
  // the generation lasts. Collective: all ranks of the set call alike: BeginMemory, AwaitTurn, then
  // they meet, AwaitMemory, and submit an allgather of the name that ExpectMemory returns; if it
  // was not launched (WasLaunched) but staged, another one. Where there may be windows they agree
  // on whether this is one in between. EndMemory ends what has begun, however.
  int64_t BeginMemory(ProcessSetId process_set) {
    return backend_.registrations().Begin(process_set);
  }
  // Returns WindowClaim's windows. INVALID_ARGUMENT: it is not the device's, or registered already;
  // RESOURCE_EXHAUSTED; DEADLINE_EXCEEDED.
  absl::StatusOr<int64_t> AwaitTurn(ProcessSetId process_set, int64_t number, int32_t device,
                                    absl::Span<std::byte> memory, absl::Time deadline);
  MemoryMeetings& meetings() { return backend_.meetings(); }
  // nullopt: it has ended.
  std::optional<std::vector<int32_t>> MembersOf(ProcessSetId process_set) {
    return agreements_.FindMembers(process_set);
  }
  // Whether there may be windows. UNIMPLEMENTED: not all ranks can, and why; DEADLINE_EXCEEDED.
  absl::StatusOr<bool> AwaitMemory(ProcessSetId process_set, int32_t device, absl::Time deadline);
  std::string ExpectMemory(ProcessSetId process_set, int64_t number, int64_t meeting,
                           bool as_window) {
    return backend_.registrations().Expect(process_set, number, meeting, as_window);
  }
  bool WasLaunched(ProcessSetId process_set, int64_t number) {
    return backend_.registrations().WasApplied(process_set, number);
  }
  void EndMemory(ProcessSetId process_set, int64_t number) {
    backend_.registrations().End(process_set, number);
  }
  // Whether that of why there is no window has yet to be said.
  bool IsFirstWithoutWindow() { return backend_.registrations().IsFirstWithoutWindow(); }
  // Of this rank alone: it can be freed when this has returned OK. INVALID_ARGUMENT: it is not
  // registered. FAILED_PRECONDITION: a registration is under way. DEADLINE_EXCEEDED: the device is
  // not through, or NCCL has not let go of it: to be called again. ABORTED: neither will be before
  // ToldOfTheEnd.
  absl::Status ReleaseMemory(ProcessSetId process_set, const std::byte* memory,
                             absl::Time deadline);

  // Idempotent: everything launched and everything new ends with ABORTED.
  void Abort();
  // The program has been told of a failure: streams that are held at the gate
  // go on, and this returns when they have (NcclGate::Pass).
  void Told();
  // The program has been told of the end of the generation: nothing is held any more, whatever is
  // still aborted.
  void ToldOfTheEnd();
  // Aborts what is left and joins the thread. What is held at the gate stays
  // there: the program may not know yet. Idempotent; one thread.
  void Stop();

  // As DeviceReport's.
  std::optional<v1::DeviceUse> UseBeyond(int64_t* told) { return report_.UseBeyond(told); }
  // Of what has been on the device for a second.
  void TellOfDevice(absl::Time now, v1::Heartbeat& heartbeat);

  int64_t fusion_bytes() const { return scratch_.bytes(); }
  int64_t result_bytes();      // of results that the library has made, also of those
                               // that lie idle
  int64_t registered_bytes();  // of these, with NCCL

  // What programs capture into graphs takes no part in all of this.
  DeviceGraphs& graphs() { return graphs_; }

 private:
  using Next = DeviceQueue::Next;
  struct Running {
    std::unique_ptr<BatchJob> batch;
    std::vector<TensorMove> before, behind;
    std::optional<NvtxRange> range;  // while it is being enqueued, for a profiler
    DeviceProgress::Number number = 0;
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
  struct MemoryReleased {
    ProcessSetId process_set;
    absl::Span<std::byte> memory;
    std::shared_ptr<std::atomic<bool>> done;
  };
  struct LookAgain {};
  using Input = std::variant<Planned, Returned, GroupEnded, LaneEnded, MemoryReleased, LookAgain>;

  void EnsureThread();
  absl::StatusOr<DeviceDecision> AwaitDecision(ProcessSetId process_set, int32_t device,
                                               absl::Time deadline);
  void OnDecision(ProcessSetId process_set);

  // On the thread "device".
  void Run();
  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);

  // In the seat.
  // Takes what has come and moves it on; whether anything happened.
  bool TakeAndAdvance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  bool IsOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void Take(Planned& planned);
  void Take(Returned& returned) { queue_.Return(std::move(returned.batch)); }
  void Take(GroupEnded& ended);
  void Take(LaneEnded& ended) { queue_.EndLane(ended.lane); }
  void Take(MemoryReleased& released);
  void Take(LookAgain&) {}
  // Each returns whether anything happened.
  bool Advance();
  bool CollectDone();
  // What has been on the device for long.
  void LookAtOldest(absl::Time now);
  // Its memory, until the backend ends.
  void Keep(const std::shared_ptr<Running>& running);
  Next NextOf(DeviceQueue::Entry& entry, const DeviceQueue::Before& before);
  Next ToHost(DeviceQueue::Entry& entry, const DeviceQueue::Before& before,
              const DeviceDecision& decision, bool carried);
  void LaunchOnDevice(std::unique_ptr<BatchJob> batch);
  absl::Status TryLaunch(const std::shared_ptr<Running>& running);
  // Idle memory is given back while nothing is on the device that could come to
  // be held.
  bool FreeIdleResults();
  absl::Status Prologue(Running& running, DeviceKernels& kernels, CudaStream stream);
  void Enqueued(Running& running, const std::shared_ptr<DeviceEvent>& event);
  void Finish(std::unique_ptr<BatchJob> batch, absl::Status status) {
    Finish(std::move(batch), std::move(status), clock_.Now());
  }
  void Finish(std::unique_ptr<BatchJob> batch, absl::Status status, absl::Time now);
  void FinishOnDevice(Running& running, absl::Status status);
  void WarnOnce(absl::string_view why);

  // Constant after construction.
  const DevicePlaneOptions options_;
  GpuAccess& access_;
  Clock& clock_;
  const Hooks hooks_;

  // Thread-safe by itself.
  CalledQueue<Input> inbox_;
  DeviceEvents events_;
  DeviceReport report_;
  DeviceAgreements agreements_;
  DeviceGraphs graphs_;
  std::atomic<bool> aborted_ = false;
  std::atomic<bool> told_of_the_end_ = false;
  std::atomic<bool> warned_ = false;
  LazyThread thread_;

  // The right to launch: of the thread "device" as a rule, else of a caller.
  DeviceSeat seat_;
  bool ended_ ABSL_GUARDED_BY(seat_) = false;

  // Touched in the seat, but for what is thread-safe of it.
  DeviceBackend backend_;
  DeviceScratch scratch_;
  BatchRanges ranges_;  // for a profiler
  DeviceQueue queue_;
  std::deque<std::shared_ptr<Running>> running_;
};

}  // namespace coordd
