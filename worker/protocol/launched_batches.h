// What this rank has launched in its generation, and what became of it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "worker/base/shared_spec.h"
#include "worker/protocol/plan_sequencer.h"
#include "worker/protocol/turn.h"
#include "worker/protocol/worker_events.h"

namespace coordd {

// How long a batch that the data plane failed waits for coordd to say who died. coordd sees a
// dead process within milliseconds; the error then names host and cause.
inline constexpr absl::Duration kVerdictWait = absl::Seconds(1);
// Once a member has left, what this rank has launched of a schedule may never be launched by
// others. It is given up when no batch has completed for this long.
inline constexpr absl::Duration kLeftBehindWait = absl::Seconds(5);

using BatchKey = std::pair<LaneId, int64_t>;  // with its sequence

struct LaunchedBatch {
  using Tensors = std::vector<std::pair<TensorId, SharedSpec>>;

  void Add(TensorId id, SharedSpec spec, absl::Time its_deadline);

  Tensors tensors;
  std::string first_tensor;    // by name, also when this rank has not submitted it
  std::string overdue_tensor;  // whose deadline comes first
  absl::Time launched_at;
  absl::Time deadline = absl::InfiniteFuture();
  int64_t bytes = 0;
  bool overdue = false;
  // Once it is complete, every member of the set has received what coordd has told them up to
  // this position. 0: it may be complete without them.
  int64_t proves = 0;
  ProcessSetId process_set;
};

// PURE; part of WorkerState, one per generation.
//
// Invariant: a batch executes here just when its lane counts it as launched and not as completed;
// so a generation's lanes can be told to coordd at any time.
class LaunchedBatches {
 public:
  // INTERNAL: it is not the next of its lane, and is left to the caller.
  absl::Status Launch(BatchKey key, LaunchedBatch&& batch);
  // The batch executes no more. REQUIRES: it did.
  LaunchedBatch Complete(const BatchDone& done, absl::Time now);
  // Nothing is launched on this lane any more.
  void EndLane(LaneId lane) { sequencer_.End(lane); }

  bool empty() const { return executing_.empty(); }
  size_t size() const { return executing_.size(); }
  const LaunchedBatch* Find(BatchKey key) const;
  bool has_scheduled() const;  // a batch of a schedule
  absl::Time NextDeadline() const;
  // The first that still executes at its deadline, which counts as overdue from now on; nullptr:
  // none.
  const std::pair<const BatchKey, LaunchedBatch>* TakeOverdue(absl::Time now);

  std::vector<LaneProgress> Progress() const { return sequencer_.Progress(); }
  // How far each lane is once nothing executes, lanes that have ended too.
  void Describe(v1::RecoveryReport& report) const;

  // Whether the results of all that was launched on the lane, up to this batch, are there.
  bool HasResultsUpTo(LaneId lane, int64_t sequence) const;

  // Tensors of batches that failed here wait until coordd says who is to blame, or until the next
  // generation.
  void AwaitVerdict(LaunchedBatch::Tensors tensors);
  bool awaits_verdict() const { return !awaiting_verdict_.empty(); }
  void FailAwaiting(const absl::Status& why, const WorkerTurn& turn);
  // What the data plane saw first; OK: nothing has failed here.
  const absl::Status& local_failure() const { return local_failure_; }
  void NoteLocalFailure(absl::Status failure) { local_failure_ = std::move(failure); }
  // By when coordd has to have said it; InfiniteFuture: nothing waits for that.
  absl::Time verdict_deadline() const { return verdict_deadline_; }
  void SetVerdictDeadline(absl::Time deadline) { verdict_deadline_ = deadline; }

  // Others may not launch what executes here: of schedules, if there is any; or any at all.
  void WatchSchedules(absl::Time now);
  void WatchAll(absl::Time now);
  absl::Time left_behind_deadline() const { return left_behind_deadline_; }
  // Whether it has to be given up. Once.
  bool TakeLeftBehind(absl::Time now);

 private:
  // The first batch of each lane that failed, and up to which one the results are there all the
  // same.
  struct Interrupted {
    int64_t first = 0;
    int64_t held = 0;
  };

  PlanSequencer sequencer_;
  std::map<BatchKey, LaunchedBatch> executing_;
  std::map<LaneId, Interrupted> interrupted_;
  LaunchedBatch::Tensors awaiting_verdict_;
  absl::Status local_failure_;
  absl::Time verdict_deadline_ = absl::InfiniteFuture();
  absl::Time left_behind_deadline_ = absl::InfiniteFuture();
  bool all_are_watched_ = false;
};

}  // namespace coordd
