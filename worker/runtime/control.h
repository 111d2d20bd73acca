// Where WorkerState meets threads: the control thread, callers that submit, whoever ends a batch.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/written_keys.h"
#include "worker/base/stack_probe.h"
#include "worker/base/variant_types.h"
#include "worker/coordinator/coordinator_link.h"
#include "worker/execute/process_set_table.h"
#include "worker/protocol/worker_events.h"
#include "worker/protocol/worker_state.h"
#include "worker/runtime/job_table.h"

namespace coordd {

class CommCalls;
class Completion;
class DataPlane;
class GpuWatch;
struct GenerationPlane;
class WorkerMetrics;

struct TurnDue {};  // somebody else's step has left the control thread something to do
// What WorkerState hears, and what becomes that, or nothing, on the way.
using ControlEvent = VariantWith<WorkerEvent, ProcessSetCall, TurnDue>;

// Calls for process sets that wait for the control thread; a caller that finds the queue full
// blocks to its deadline. Everything else is bounded elsewhere and never refused: coordd speaks
// about what was submitted.
inline constexpr size_t kMaxControlEvents = 4096;
using ControlInbox = BoundedQueue<ControlEvent>;

struct ControlHooks {
  std::function<void(const GenerationEnded&)> generation_ended;
  // Makes the data plane of the next generation, which may still be connecting. Not needed by those
  // who have only one.
  std::function<absl::StatusOr<std::shared_ptr<GenerationPlane>>(const v1::CoordinatorMessage&)>
      enter_generation;
  // Another one follows, and programs go on. Not needed by those for whom none does.
  std::function<void()> generation_interrupted = {};
  std::function<void(int32_t)> newcomers_wait;    // so many
  std::function<void(absl::Time)> drain_noticed;  // until when; infinite: not any more
  // What this worker has written into the store, for a coordd that was started again. Must not
  // block.
  std::function<WrittenReport()> stored = {};
  std::function<void()> work_finished = {};  // what was to be before a goodbye that is held
  std::function<void()> stopped;             // the goodbye is said, or forced; nothing follows
  std::function<void(const CoordinatorAway&)> coordinator_away = {};
};

// WorkerState is stepped under a lock, by the thread "control" (messages, deadlines, reports,
// heartbeats), by callers (what they submit) and by the threads that end batches. Steps are short
// and never block. The control thread wakes for an event, for what is due, and when another
// thread's step has left it something to report or an earlier deadline; when idle that is the
// heartbeat alone.
//
// What a step says is to be done is carried out after the lock is released, and in the order of the
// steps: under the lock it is appended to one queue, and one thread at a time carries the queue
// out. Whoever finds another thread at it leaves its own to that one and goes on, so nobody waits;
// a thread that is through with what it took leaves what has come in between to the control thread.
//
// Outlives generations: when one follows another, the executor of the old one has nothing left to
// do, and is stopped once the new one's has taken its place.
class Control {
 public:
  struct Needs {
    ControlInbox& inbox;
    Completion& completion;
    ProcessSetTable& process_sets;
    WorkerMetrics& metrics;
    TraceRecorder& trace;
    Clock& clock;
    StackProbe& stacks;
    GpuWatch& gpu_watch;
    CommCalls& comm_calls;
  };
  struct Stream {
    std::unique_ptr<CoordinatorLink> link;  // on which the worker has joined
    LinkFactory make_link;                  // another, when that has ended
  };
  // `plane`: of the first generation.
  Control(WorkerStateOptions options, Needs parts, Stream stream,
          std::shared_ptr<GenerationPlane> plane, ControlHooks hooks);
  ~Control();

  // `early`: what came through the inbox behind the Membership. Once.
  void Start(std::vector<ControlEvent> early);

  // Thread-safe. Takes the jobs, which then end through Completion; a batch that they complete by
  // themselves is launched before this returns, unless another thread is about to. False, and they
  // are untouched, after Join.
  // `now`: when they were submitted, a moment ago.
  bool Submit(std::vector<TensorJob>& jobs, absl::Time now);
  // Thread-safe: a batch that was launched has ended; before its Works complete, so that whoever
  // submits again comes after it.
  void BatchEnded(BatchDone done);
  // Thread-safe: the same for a batch that failed and may be executed again.
  void BatchInterrupted(std::unique_ptr<BatchJob> batch, BatchDone done);
  // Thread-safe. Of the generation that is, or was the last.
  std::shared_ptr<GenerationPlane> plane() ABSL_LOCKS_EXCLUDED(mu_);

  // Joins the thread, which ends by itself after `stopped`, or once the inbox is closed. From then
  // on nothing is decided. Then, when the executor has stopped, FailRest fails with `status` what
  // has no end yet, and ends the stream.
  void Join();
  void FailRest(const absl::Status& status);

 private:
  using Actions = std::vector<ControlAction>;

  void Run(std::vector<ControlEvent> early);
  // Returns until when nothing is due; nullopt: the goodbye is said.
  std::optional<absl::Time> Turn(std::vector<ControlEvent> events);
  void StepLocked(WorkerEvent event, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // For WorkerState, to which time never goes back.
  absl::Time NotBeforeLocked(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLocked(BatchDone done, bool& wake) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StepLocked(ControlEvent& event, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ResolveLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What is to be carried out by this thread, which then calls CarryOut; empty: nothing is, or
  // another thread is at it.
  Actions TakeActionsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CarryOut(Actions actions);
  // Whether the control thread has to be told (by WakeControl) that `due` is before what it waits
  // for.
  bool MustWakeLocked(absl::Time due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeControl();
  void UpdateMetrics();

  void Do(SendMessage& action);
  // With what WorkerState does not know.
  void Complete(v1::Heartbeat& heartbeat);
  void Complete(v1::Leave& leave);
  void SendToCoordinator(v1::WorkerMessage message);
  void SendStored(const v1::Resume& resume);
  void Do(DefineGroup& action);
  void Do(EndProcessSet& action);
  void Do(EndLane& action);
  void Do(AnswerCall& action);
  void Do(LaunchJob& action);
  void Do(FailWork& action);
  void Do(AbortExecution& action);
  void Do(GenerationEnded& action);
  void Do(GenerationInterrupted& action);
  void Do(TraceBegin& action);
  void Do(TraceEnd& action);
  void Do(NewcomersWait& action);
  void Do(DrainNoticed& action);
  void Do(EnterNext& action);
  void Do(OpenStream& action);
  void Do(CoordinatorAway& action);
  void Do(CloseStream& action);
  void Do(WorkFinished& action);
  void Do(Stopped& action);

  // Constant after construction.
  const Needs needs_;
  const LinkFactory make_link_;
  const ControlHooks hooks_;

  // Guarded by mu_.
  Mutex mu_;
  CondVar carried_out_;
  WorkerState state_ ABSL_GUARDED_BY(mu_);
  JobTable table_ ABSL_GUARDED_BY(mu_);
  std::vector<WorkerEffect> effects_ ABSL_GUARDED_BY(mu_);  // of the step at hand
  Actions actions_ ABSL_GUARDED_BY(mu_);                    // to be carried out
  bool carrying_out_ ABSL_GUARDED_BY(mu_) = false;          // a thread is at it
  absl::Time sleeps_until_ ABSL_GUARDED_BY(mu_);            // the control thread
  absl::Time last_now_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool joined_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<GenerationPlane> plane_ ABSL_GUARDED_BY(mu_);

  // Touched by whoever carries out.
  DataPlane* active_;  // of plane_
  // What this stream has told of this generation (DevicePlane::UseBeyond, EdgeReport::EdgesBeyond).
  struct Told {
    int64_t device_use = 0, host_edges = 0;
  };
  Told told_;

  // Touched by whoever carries out what is to be done, one thread at a time; then by the owner's.
  std::unique_ptr<CoordinatorLink> link_;

  // Touched by the owner's thread.
  std::thread thread_;
};

}  // namespace coordd
