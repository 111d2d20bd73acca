// How far a worker is with its end, as the threads of the program see it.
#pragma once

#include <utility>

#include "absl/status/status.h"

namespace coordd {

// Not thread-safe: guarded by what guards its owner.
//
// Invariant: one thread ends the worker, once; the others have its result.
class WorkerEnding {
 public:
  enum class Phase { kRuns, kEnds, kEnded };

  Phase phase() const { return phase_; }
  // Whether the caller is the one to end it.
  bool Begin() {
    if (phase_ != Phase::kRuns) return false;
    phase_ = Phase::kEnds;
    return true;
  }
  void End(absl::Status result) {
    phase_ = Phase::kEnded;
    result_ = std::move(result);
  }
  const absl::Status& result() const { return result_; }

  // --- what control has said ---
  // It has been asked to finish what is planned, and will say when it has.
  void AskToFinish() { work_finished_ = false; }
  void NoteWorkFinished() { work_finished_ = true; }
  void NoteStopped() { stopped_ = true; }
  // Nothing is pending any more.
  bool work_finished() const { return work_finished_ || stopped_; }
  // The goodbye is said, or forced.
  bool stopped() const { return stopped_; }

 private:
  Phase phase_ = Phase::kRuns;
  bool work_finished_ = false;
  bool stopped_ = false;
  absl::Status result_;
};

}  // namespace coordd
