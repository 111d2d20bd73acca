// How far the batches on a rank's device have come, for who asks from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "worker/base/shared_spec.h"
#include "worker/execute/batch_job.h"

namespace coordd {

// In the order of the stream, of which a device has one. Who asks never waits for the driver, or
// for whoever is in a call of it: its lock is held for a few stores alone. A batch costs three of
// those. Thread-safe.
class DeviceProgress {
 public:
  enum class Stage {
    kLaunching,  // NCCL has not enqueued it
    kEnqueued,   // behind others, as far as anybody has looked
    kHeld,       // the first of the stream, and its tensors are still being made by the program
    kStarted,    // the first of the stream, and they are made
  };
  struct Standing {
    SharedSpec first;  // tensor
    int32_t tensors = 0;
    LaneId lane;
    int64_t sequence = 0;
    ProcessSetId process_set;
    Stage stage = Stage::kLaunching;
    absl::Time launched;
    absl::Time in_stage_since;
  };
  // The numbers of batches, in the order in which they were launched.
  using Number = int64_t;

  Number Launching(const BatchJob& batch, absl::Time now);
  void Enqueued(Number number, absl::Time now);
  // When it was its turn: all before it on the stream had ended, so far as that was seen. Not
  // before it was enqueued, nor behind `now`.
  absl::Time Ended(Number number, absl::Time now);

  // The first of the stream, if it was launched before `launched_by` and its tensors are not known
  // to be made: somebody is to look.
  std::optional<Number> Unclear(absl::Time launched_by);
  // What was seen then.
  void NoteTensors(Number number, bool are_made, absl::Time now);

  // Those launched before `launched_by`, the oldest first, at most `limit`.
  std::vector<Standing> Launched(absl::Time launched_by, size_t limit);

 private:
  struct Entry {
    Standing batch;
    absl::Time turn;
    bool ended = false;
  };
  Entry* Find(Number number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Enter(Entry& entry, Stage stage, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Guarded by mu_.
  Mutex mu_;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mu_);  // the first one has not ended
  Number first_ ABSL_GUARDED_BY(mu_) = 0;
};

// Tells of these.
void TellOfDevice(const std::vector<DeviceProgress::Standing>& standing, absl::Time now,
                  v1::Heartbeat& heartbeat);

}  // namespace coordd
