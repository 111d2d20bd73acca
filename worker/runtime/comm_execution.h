// Executes the calls of a comm, one after the other.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "worker/api/comm.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/interfaces/doorbell.h"
#include "worker/node/mapped_lane.h"
#include "worker/runtime/comm_calls.h"
#include "worker/runtime/generation_plane.h"
#include "worker/runtime/worker_metrics.h"

namespace coordd {

// One thread at a time uses it, but for Check. Over mapped memory the thread advances a
// NodeCollectiveRun by itself, and looks at the generation's end between two looks at the others;
// that they are dead it hears from coordd. Otherwise the executor runs the collective, on the
// calling thread if that is free.
//
// When all that has ended the generation is that members have left, a call goes on as long as it
// waits for none of them: what they had to say in it they have said.
class CommExecution {
 public:
  struct Needs {
    std::string name;             // for texts
    ProcessSetId process_set;     // of the members
    std::vector<int32_t> ranks;   // these, in the generation
    int32_t self = 0;             // among them
    Generation generation;        // of the plane
    LaneId lane;                  // its own
    absl::Duration timeout;       // of each call
    int32_t polling_threads = 1;  // as ExecutorOptions
    int32_t cores = 1;
    std::shared_ptr<GenerationPlane> plane;
    std::shared_ptr<MappedLane> mapped;  // nullptr: messages
    // Not used once the plane's generation has ended.
    WorkerMetrics* metrics = nullptr;
    std::shared_ptr<CommCalls> calls;                         // of the worker
    std::function<void(const absl::Status&)> report_failure;  // of the data plane
    Clock* clock = nullptr;
  };

  explicit CommExecution(Needs parts);
  ~CommExecution();
  CommExecution(const CommExecution&) = delete;
  CommExecution& operator=(const CommExecution&) = delete;

  const Needs& needs() const { return needs_; }
  int32_t size() const { return static_cast<int32_t>(needs_.ranks.size()); }
  absl::Status Named(const absl::Status& status) const;

  // Thread-safe. INVALID_ARGUMENT.
  absl::Status Check(const CommCall& call) const;
  // Of an alltoall with splits: those of one buffer.
  absl::Status CheckSplits(absl::string_view which, absl::Span<const int64_t> counts,
                           const void* buffer) const;
  // Begins a call. Statuses: as Comm::Run, of what is known at once. REQUIRES: the one before has
  // ended.
  absl::Status Begin(const CommCall& call);
  // Begins a call and goes on with it to its end.
  absl::Status Run(const CommCall& call);
  // Goes on with the call that has begun, for so long at most, whatever it waits for: nullopt then.
  // Statuses: as Comm::Run.
  std::optional<absl::Status> Go(absl::Duration most);

 private:
  absl::Status CheckState() const;
  // What is to be done before every call. Statuses: as Begin.
  absl::Status Accept(const CommCall& call);
  bool IsInline() const;  // whether what it moves fits into posts
  void MakeRun();
  // What the call says, in args_. INVALID_ARGUMENT.
  absl::Status Prepare(const CommCall& call);
  template <typename Collective>
  std::optional<absl::Status> Await(Collective& run, absl::Duration most);
  // Whether the call waits for a member that says no more.
  template <typename Collective>
  bool IsInVain(const Collective& run) const;
  // That of the first one that does so, when it is that for the second time; OK otherwise.
  template <typename Collective>
  absl::Status Desertion(const Collective& run);
  template <typename Collective>
  absl::Status Lateness(const Collective& run, absl::Duration waited) const;
  template <typename Collective>
  void TellLateness(const Collective& run);
  // What coordd is told of a call that waits.
  WaitingCall Waiting() const;
  template <typename Collective>
  void NoteWaiting(const Collective& run, absl::Time now);
  void NoteWaitingForMessages();
  std::optional<absl::Status> GoByMessages(absl::Duration most);
  absl::Status FailureByMessages(const absl::Status& status) const;
  absl::Status Finish(absl::Status status);
  void Divide() const;
  void Count(const absl::Status& status);

  // Constant after construction.
  const Needs needs_;
  const std::string backend_name_;

  // Touched by whoever uses it.
  CollectiveArgs args_;               // kept, with what its lists have room for
  std::optional<CommCall> prepared_;  // what args_ are of: programs say the same again and again
  bool scaled_ = false;               // the average of the last call was made in passing
  // Of the call that goes on, one of these; the first two over mapped memory.
  std::optional<NodeInlineRun> inline_;
  std::optional<NodeCollectiveRun> run_;
  std::shared_ptr<DirectRun> direct_;
  absl::Time deadline_;   // of the call; InfinitePast: not known before it matters
  absl::Time called_at_;  // likewise
  absl::Time tell_at_;    // when to say anew for coordd whom it waits for; likewise
  absl::Time late_at_;    // when to tell whom it waits for; likewise; InfiniteFuture: has been told
  bool in_vain_ = false;  // when it was looked last: coordd may say why
  absl::Status failure_;
  CommCalls::Account account_;
  std::array<std::shared_ptr<WorkerMetrics::Tally>, 32> tallies_;  // by kind; nullptr: none yet
};

}  // namespace coordd
