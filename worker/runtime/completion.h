// The thread that ends tensors: unpacks, completes their Works, runs callbacks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "worker/execute/batch_job.h"
#include "worker/execute/work.h"
#include "worker/protocol/worker_events.h"
#include "worker/runtime/pending_names.h"

namespace coordd {

class WorkerMetrics;

struct CompletionHooks {
  // Scratch memory is not needed any more.
  std::function<void(LaneId, ScratchLoan)> return_scratch;
  // Called before the Works of a batch complete, so that whoever submits again comes after it.
  std::function<void(BatchDone)> batch_done;
  // Instead, for a batch that failed, where it may be executed again: takes it, with its memory.
  std::function<void(std::unique_ptr<BatchJob>, BatchDone)> interrupted;
};

// What a batch may hold to be ended by the executor's own thread: unpacking it takes less than
// waking another thread does.
inline constexpr int64_t kEndedAtOnceBytesMax = 64 << 10;

// The thread "completion". A batch that went well is unpacked and its Works complete; one that
// failed is only reported, because what to say about it is decided elsewhere and comes back through
// Fail(). That happens on this thread, unless nobody's callback waits for it and the batch is small
// or is the one tensor for which the thread that drives waits.
class Completion {
 public:
  Completion(std::string backend_name, PendingNames& names, WorkerMetrics& metrics,
             TraceRecorder& trace, Clock& clock, CompletionHooks hooks);
  ~Completion();  // Stop

  void Start();
  // Thread-safe; never block: both are bounded by what was submitted. Finish may end the batch on
  // the calling thread.
  void Finish(std::unique_ptr<BatchJob> batch);
  void Fail(std::shared_ptr<Work> work, absl::Status status);
  // The results of an interrupted batch count after all. Unpacks on the calling thread: what the
  // executor has lent may be gone afterwards.
  void FinishHeld(std::unique_ptr<BatchJob> batch);
  // Completes what is queued, joins the thread. Idempotent; one thread.
  void Stop();

 private:
  struct Failure {
    std::shared_ptr<Work> work;
    absl::Status status;
  };
  using Item = std::variant<std::unique_ptr<BatchJob>, Failure>;

  void Run();
  void Complete(Work& work, absl::string_view backend, absl::Status status, WorkResult result);
  void End(std::unique_ptr<BatchJob> batch);
  void CompleteAll(BatchJob& batch);

  // Constant after construction.
  const std::string backend_name_;
  Clock& clock_;
  const CompletionHooks hooks_;

  // Thread-safe by itself.
  PendingNames& names_;
  WorkerMetrics& metrics_;
  TraceRecorder& trace_;
  BoundedQueue<Item> inbox_;

  // Touched by the owner's thread.
  std::thread thread_;
};

}  // namespace coordd
