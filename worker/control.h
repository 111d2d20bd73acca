// The thread that owns WorkerState.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/bounded_queue.h"
#include "common/clock.h"
#include "worker/batch_job.h"
#include "worker/process_set_reply.h"
#include "worker/process_set_table.h"
#include "worker/tensor_job.h"
#include "worker/worker_events.h"
#include "worker/worker_state.h"

namespace coordd {

class Completion;
class CoordinatorLink;
class Executor;
class WorkerMetrics;

// What the control thread takes in. A submission travels with its buffers; the state machine sees
// its values only.
struct JobsSubmitted {
  std::vector<TensorJob> jobs;
};
struct ProcessSetCall {
  ProcessSetAsked asked;  // its token is the control thread's
  std::shared_ptr<ProcessSetReply> reply;
};
using ControlEvent = std::variant<JobsSubmitted, ProcessSetCall, CoordinatorSaid, StreamEnded,
                                  BatchDone, LeaveRequested, StopForced>;

// Submissions that wait for the control thread; a caller that finds the queue full blocks to its
// deadline. Everything else is bounded elsewhere and never refused: coordd speaks about what was
// submitted, a batch ends once.
inline constexpr size_t kMaxSubmissions = 4096;
using ControlInbox = BoundedQueue<ControlEvent>;

struct ControlHooks {
  std::function<void(absl::Status)> generation_ended;
  std::function<void()> stopped;  // the goodbye is said, or forced; nothing follows
};

// The thread "control": takes events, lets WorkerState decide, carries out what it says. It wakes
// for an event or for what is due; when idle that is the heartbeat alone.
class Control {
 public:
  struct Parts {
    ControlInbox& inbox;
    CoordinatorLink& link;
    Executor& executor;
    Completion& completion;
    ProcessSetTable& process_sets;
    WorkerMetrics& metrics;
    Clock& clock;
  };
  Control(WorkerStateOptions options, Parts parts, ControlHooks hooks);
  ~Control();

  // `early`: what came through the inbox behind the Membership. Once.
  void Start(std::vector<ControlEvent> early);
  // Joins the thread, which ends by itself after `stopped`, or once the inbox is closed. Then fails
  // with `status` what has no end yet. REQUIRES: the executor has stopped.
  void Join();
  void FailRest(const absl::Status& status);

 private:
  void Run(std::vector<ControlEvent> early);
  void Turn(std::vector<ControlEvent> events);
  WorkerEvent Register(ControlEvent event);
  void Perform(WorkerEffect& effect);
  void Do(SendMessage& effect);
  void Do(DefineProcessSet& effect);
  void Do(EndProcessSet& effect);
  void Do(ProcessSetAnswer& effect);
  void Do(LaunchBatch& effect);
  void Do(FailTensor& effect);
  void Do(AbortExecution& effect);
  void Do(GenerationEnded& effect);
  void Do(CloseStream& effect);
  void Do(Stopped& effect);

  // Constant after construction.
  const BatchContext world_;  // of process set 0
  const Rank rank_;
  const Parts parts_;
  const ControlHooks hooks_;

  // Touched by the control thread, and after its end by the owner's.
  WorkerState state_;
  int64_t last_id_ = 0;
  absl::flat_hash_map<TensorId, TensorJob> waiting_;  // not launched
  absl::flat_hash_map<TensorId, std::shared_ptr<Work>> launched_;
  std::map<std::pair<LaneId, int64_t>, std::vector<TensorId>> batches_;
  std::map<ProcessSetId, BatchContext> process_sets_;  // of which this rank is a member
  int64_t last_token_ = 0;
  std::map<int64_t, std::shared_ptr<ProcessSetReply>> replies_;
  bool stopped_ = false;

  // Touched by the owner's thread.
  std::thread thread_;
};

}  // namespace coordd
