// Who talks to the data plane: a thread of its own, or a caller that waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/protocol/store.h"
#include "worker/execute/batch_job.h"
#include "worker/execute/connect_result.h"
#include "worker/execute/driver_seat.h"
#include "worker/execute/executor_lanes.h"
#include "worker/execute/fusion_buffer_pool.h"
#include "worker/execute/open_groups.h"
#include "worker/interfaces/alarm.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/interfaces/doorbell.h"
#include "worker/interfaces/group_layout.h"
#include "worker/node/node_arena.h"

namespace coordd {

class GenerationEnd;  // worker/execute/generation_end.h
class IdleWait;       // worker/interfaces/idle_wait.h
struct CommOpening;   // executor_comms.cc
struct DirectRun;

// Two, so that the completion thread unpacks one while the other is in an exchange.
inline constexpr int kFusionBuffers = 2;
// Batches of one lane whose payload the backend has at one time: enough to keep it busy while
// others unpack.
inline constexpr int kMaxBatchesInFlight = 8;

struct ExecutorOptions {
  int64_t fusion_buffer_bytes = int64_t{128} << 20;
  int32_t polling_threads = 1;  // ranks on this node, for IdleWait
  int32_t cores = 1;
  // A batch ends on a rank only when all ranks have its result, and those of the groups that reach
  // behind it: each is followed by a barrier.
  bool confirm = false;
  // Batches say which tensor is where (CollectiveArgs::element_at).
  bool names_elements = false;
};

// The backend belongs to whoever sits in the driver's seat, from its connection to its end: that
// thread takes batches in the order of the plans, packs, launches, makes progress, and hands each
// to `finished` with its status, once. The thread "executor" sits there while anything is in
// flight, and otherwise sleeps. A thread that waits for a tensor (Work::Wait) finds the seat free
// then, and drives until its tensor is done; what is left at that moment, or at its deadline, is
// the executor's thread's again.
//
// Every rank launches the same collectives of a lane in the same order; so no batch is launched
// before the payload of the one in front of it on its lane, which may still wait for sizes or for
// scratch memory. Lanes do not wait for each other, not even for memory, or two ranks that are busy
// in different process sets could wait for each other in a circle: the fusion buffers are for
// whoever comes first, and a lane that finds none free, and holds none, gets memory of its own.
//
// Of a batch whose payload is NCCL's (`sizes_only`) the sizes are exchanged here, in the order of
// its lane.
class Executor {
 public:
  using Finished = std::function<void(std::unique_ptr<BatchJob>)>;

  Executor(ExecutorOptions options, std::unique_ptr<CollectiveBackend> backend, Clock& clock,
           Finished finished);
  ~Executor();  // Stop

  // Starts the thread and connects the backend on it; blocks until connected. Once. Statuses: as
  // CollectiveBackend::Connect.
  absl::Status Start(GroupLayout layout, Store& store, absl::Time deadline);
  // Connects without waiting: `connected` is called with the result, on the executor's thread. What
  // is launched before that waits for it.
  using Connected = std::function<void(const absl::Status&)>;
  void StartConnecting(GroupLayout layout, Store& store, absl::Time deadline, Connected connected);

  // Thread-safe. Never blocks: what is launched is bounded by what was submitted. A batch of one
  // tensor is left to the thread that waits for it, if one does.
  void Launch(std::unique_ptr<BatchJob> batch);
  // Thread-safe: the completion thread has unpacked this batch. To be called for every finished
  // batch that has taken scratch memory (BatchJob::scratch).
  void ReturnScratch(LaneId lane, ScratchLoan loan);
  // Thread-safe. Groups of the backend: defined before the first batch launched on the lane of the
  // set, ended after the last one has finished.
  void DefineGroup(ProcessSetId process_set, RankList ranks);
  void EndGroup(ProcessSetId process_set);
  // Thread-safe. Nothing follows on the lane of a schedule: it ends when the last batch has.
  void EndLane(LaneId lane);

  // Comms (worker/api/comm.h), by threads of the program. Thread-safe, once connected;
  // executor_comms.cc. Opens a lane among these ranks. nullptr: they exchange messages, by
  // BeginDirect. ABORTED; RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<MappedLane>> OpenComm(LaneId lane, std::vector<Rank> ranks);
  // `mapped`: what OpenComm has returned, if its last collective ended well.
  void CloseComm(LaneId lane, std::shared_ptr<MappedLane> mapped);
  // One that says the same as the one before of its lane, whose thread may execute it by itself: if
  // the seat is free, and nothing else is under way. Returns its status: as GoOnDirect. nullopt: it
  // was not done, and not begun if `begun` is still nullptr: then BeginDirect has to follow, else
  // GoOnDirect.
  std::optional<absl::Status> RunAgain(const CollectiveArgs& args, absl::Duration timeout,
                                       absl::Duration most, const GenerationEnd& end,
                                       std::shared_ptr<DirectRun>& begun) noexcept;
  // Begins one collective of the lane; GoOnDirect has to follow until it has ended. nullptr: the
  // data plane has stopped.
  std::shared_ptr<DirectRun> BeginDirect(CollectiveArgs args, absl::Time deadline);
  // Goes on with it until `pause` at most, by one thread at a time, and drives the data plane
  // meanwhile if nobody else does. nullopt: it has not ended; the executor's thread drives it. At
  // its deadline, and some time after the end of the generation, the data plane is aborted: its
  // buffers would otherwise stay in use. Statuses: as CollectiveBackend::Launch and its `done`;
  // DEADLINE_EXCEEDED.
  std::optional<absl::Status> GoOnDirect(DirectRun& run, absl::Time pause,
                                         const GenerationEnd& end);
  // Thread-safe, does not wait: executes one collective of a lane that no batch is on, in a group
  // of DefineGroup's. `done` is called once: from the thread in the driver's seat, or at once when
  // the data plane has stopped.
  void LaunchExchange(CollectiveArgs args, CollectiveBackend::Done done);
  // A transfer of a message: the same, but false, and `done` is never called, when the data plane
  // has stopped already. Whoever is not in a `done` calls DriveMessages afterwards.
  bool TryLaunchMessage(CollectiveArgs args, CollectiveBackend::Done done);
  // Thread-safe: drives what can be done at once, if nobody else does. The rest is left to whoever
  // waits for the message, and to the executor's thread if nobody does so soon.
  void DriveMessages() noexcept;
  // Ends the lane and the group of its number. Nothing of it is in flight.
  void EndExchanges(LaneId lane) { CloseComm(lane, nullptr); }
  // Thread-safe, idempotent: everything launched and everything new ends with ABORTED.
  void Abort();
  // Thread-safe: comms whose callers sleep look whether their generation has ended.
  void RingComms();
  // Thread-safe: tells the ranks of the node that this one calls nothing of a comm any more.
  void LeaveComms();
  // Aborts what is still running, hands it to `finished`, joins the thread. Idempotent; one thread.
  void Stop();

  // For the Works that are launched here.
  const std::shared_ptr<DriverSeat>& seat() const { return seat_owner_; }
  const std::string& backend_name() const { return backend_name_; }
  // The backend's arena, once connected; it may outlive this object.
  std::shared_ptr<NodeArena> arena() const {
    return arena_ != nullptr && !arena_->memories().empty() ? arena_ : nullptr;
  }
  int64_t fusion_bytes() const { return buffers_.bytes(); }
  int64_t batches() const { return batches_.load(std::memory_order_relaxed); }

 private:
  struct ScratchReturned {
    LaneId lane;
    ScratchLoan loan;
  };
  struct GroupDefined {
    ProcessSetId process_set;
    RankList ranks;
  };
  struct GroupEnded {
    ProcessSetId process_set;
  };
  struct LaneEnded {
    LaneId lane;
  };
  struct CommClosed {
    LaneId lane;
    std::shared_ptr<MappedLane> mapped;
  };
  struct Exchange {
    CollectiveArgs args;
    CollectiveBackend::Done done;
    bool is_message = false;
  };
  using Input =
      std::variant<std::unique_ptr<BatchJob>, ScratchReturned, GroupDefined, GroupEnded, LaneEnded,
                   std::shared_ptr<CommOpening>, CommClosed, std::shared_ptr<DirectRun>, Exchange>;
  enum class Stage { kSizes, kPayload };
  struct InFlight {
    std::unique_ptr<BatchJob> batch;
    Stage stage = Stage::kPayload;
    int open = 0;  // collectives of it that have not ended
    absl::Status status;
  };

  // Where whoever sits in the driver's seat may sleep.
  struct Wakes {
    std::atomic<Doorbell*> own_bell = nullptr;  // set once connected, on mapped memory
    Alarm alarm;                                // where the network's descriptor is waited at, too
  };

  struct AtBackend {  // what it has of ours
    std::deque<std::unique_ptr<InFlight>> batches;
    int direct_runs = 0;  // and exchanges
    int messages = 0;     // of the exchanges

    bool empty() const { return batches.empty() && direct_runs == 0; }
  };

  void Run(const GroupLayout& layout, Store& store, absl::Time deadline,
           const Connected& connected);
  // Nothing may leave it by an exception, as nothing may leave the executor's thread: what is half
  // launched cannot be taken back.
  void DriveFor(const Work& waiter, absl::Time deadline) noexcept ABSL_UNLOCK_FUNCTION(seat_);
  void DriveUntilIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  // One round; returns whether anything happened. If not, and nothing is in flight, nothing will
  // before the next call to the seat (scratch memory that comes back is one, too).
  bool Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void TakeInputs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void Take(std::unique_ptr<BatchJob>& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void Take(ScratchReturned& returned) ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void Take(GroupDefined& defined) ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void Take(GroupEnded& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void Take(LaneEnded& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void Take(std::shared_ptr<CommOpening>& opening) ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void Take(CommClosed& closed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void Take(std::shared_ptr<DirectRun>& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void Take(Exchange& exchange) ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  // It is at the backend: what ends it.
  CollectiveBackend::Done NoteDirect(std::shared_ptr<DirectRun> run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  // `wait`: that of this thread, which has the seat, and leaves it; nullptr: it has to take it.
  std::optional<absl::Status> GoOn(DirectRun& run, absl::Time pause, const GenerationEnd& end,
                                   IdleWait* wait);
  void DriveDirect(const DirectRun& run, const std::function<bool()>& stops,
                   IdleWait& wait) noexcept ABSL_UNLOCK_FUNCTION(seat_);
  bool idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_) { return at_backend_.empty(); }
  bool LeavesSomething() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  // For whom the rest is, if there is any.
  void LeaveSeat() ABSL_UNLOCK_FUNCTION(seat_);
  // Launches what may be launched now; returns whether anything was.
  bool LaunchReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  bool LaunchNext(ExecutorLane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  bool LaunchPayload(ExecutorLane& lane, std::unique_ptr<BatchJob>& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void LaunchArgs(ExecutorLane& lane, std::unique_ptr<BatchJob> batch, Stage stage,
                  CollectiveArgs args) ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  // Whether the backend took it; calls back when it has ended.
  bool LaunchPart(InFlight& entry, CollectiveArgs args, bool is_payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  bool CollectFinished() ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void EndIdleLanes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  // Scratch memory for the batch; nullopt: the lane has to wait for what it holds itself.
  absl::StatusOr<std::optional<absl::Span<std::byte>>> ScratchFor(ExecutorLane& lane,
                                                                  BatchJob& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  absl::StatusOr<absl::Span<std::byte>> OwnScratch(BatchJob& batch);
  // The next batch of its lane has ended.
  void FinishNext(ExecutorLane& lane, std::unique_ptr<BatchJob> batch, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void FinishConfirmed(ExecutorLane& lane, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void Finish(std::unique_ptr<BatchJob> batch, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);
  void HandOver(std::unique_ptr<BatchJob> batch, absl::Status status);
  template <typename T>
  void Put(T input);
  // Thread-safe: what was put there is seen by whoever sits in the seat. As DriverSeat::Call.
  void CallDriver(bool waiter_comes = false);
  // Waits as IdleWait::Wait does.
  bool WaitForMore(IdleWait& wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_);

  // Constant after construction.
  const ExecutorOptions options_;
  const std::string backend_name_;
  const std::shared_ptr<NodeArena> arena_;
  const Finished finished_;
  Clock& clock_;
  const std::shared_ptr<DriverSeat> seat_owner_;
  DriverSeat& seat_;
  std::unique_ptr<CollectiveBackend> backend_;  // until Stop; outside the seat: only Abort

  // Thread-safe by itself.
  BoundedQueue<Input> inbox_;
  std::atomic<bool> aborted_ = false;
  std::atomic<bool> stopping_ = false;
  ConnectResult connect_result_;  // for Start
  Wakes wakes_;
  std::atomic<int64_t> batches_ = 0;  // launched here and not finished

  // The lanes, which belong to whoever sits in the driver's seat.
  ExecutorLanes lanes_ ABSL_GUARDED_BY(seat_);
  AtBackend at_backend_ ABSL_GUARDED_BY(seat_);
  FusionBufferPool buffers_;                             // bytes() is thread-safe
  std::vector<Input> inputs_ ABSL_GUARDED_BY(seat_);     // for its memory
  const Work* waiter_ ABSL_GUARDED_BY(seat_) = nullptr;  // for whom a caller drives

  // Touched by the owner's thread.
  std::thread thread_;
};

}  // namespace coordd
