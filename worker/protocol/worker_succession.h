// How a worker's generation ends, and whether another one follows it. PURE
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordd/v1/session.pb.h"
#include "worker/execute/generation_end.h"
#include "worker/protocol/turn.h"
#include "worker/protocol/worker_events.h"

namespace coordd {

// Once the members have agreed on a change, what executes ends by itself, since all have launched
// it. A program that has agreed on nothing is aborted after this.
inline constexpr absl::Duration kAskedAbortWait = absl::Seconds(1);

// Not thread-safe: a part of WorkerState, one per generation.
//
// Invariant: AbortExecution is given once, when the generation is aborted or is to be followed by
// another one; end() is OK while the program need not know of an end.
class WorkerSuccession {
 public:
  enum class Phase {
    kLive,
    kEnding,    // over, and what executes ends by itself
    kAborted,   // over, and what executes is aborted
    kChanging,  // aborted, and as far as this rank knows another generation follows
  };

  explicit WorkerSuccession(OnFailure on_failure) : on_failure_(on_failure) {}
  // Of the generation that follows this one.
  WorkerSuccession Next() const;

  Phase phase() const { return phase_; }
  bool live() const { return phase_ == Phase::kLive; }
  bool aborted() const { return phase_ >= Phase::kAborted; }
  bool expects_next() const { return phase_ == Phase::kChanging; }
  // A generation that has lost a member is followed by another one, if coordd can form it.
  bool is_followed() const { return on_failure_ != OnFailure::kEnd; }
  // Nothing fails then: what is pending goes on in the next one.
  bool continues() const { return on_failure_ == OnFailure::kContinue; }
  // The error of every call from now on; OK: the program need not know of an end.
  const absl::Status& end() const { return end_; }
  // Why the last generation ended, for what was submitted for it.
  const absl::Status& change() const { return change_; }
  // Why this one does. REQUIRES: expects_next().
  const absl::Status& why() const { return continues() ? change_ : end_; }

  // `followed`: by another one; REQUIRES then: `abort`, live, and that it does not continue.
  void End(absl::Status why, bool abort, bool followed, const WorkerTurn& turn);
  // The same for a generation that continues in the next one. REQUIRES: live.
  void Interrupt(const absl::Status& why, const WorkerTurn& turn);
  // No generation follows after all. REQUIRES: expects_next().
  void EndForGood(absl::Status why, const WorkerTurn& turn);
  // This rank says goodbye; whether the program did not know of an end.
  bool EndByGoodbye(const WorkerTurn& turn);

  // An Abort on which the members had agreed is heeded when nothing executes any more, or after a
  // while.
  bool holds_abort() const { return held_abort_.has_value(); }
  bool MayHold(const v1::Abort& abort) const {
    return abort.asked() && abort.reforms() && live() && !holds_abort();
  }
  void HoldAbort(const v1::Abort& abort, absl::Time now) {
    held_abort_ = abort;
    held_until_ = now + kAskedAbortWait;
  }
  void DropHeldAbort() { held_abort_.reset(); }
  // None: it is not due.
  std::optional<v1::Abort> TakeHeldAbort(bool executes, absl::Time now);
  absl::Time NextDeadline() const { return holds_abort() ? held_until_ : absl::InfiniteFuture(); }

  // --- what coordd is told of the end ---
  // coordd has ended it, and says what it wants to know. The generation has ended here before.
  void OnAbort(const v1::Abort& abort);
  // The coordd that has asked is gone: the next one asks again, or says what has become of it.
  void ForgetQuestion() { report_ = Report::kNotAsked; }
  bool report_is_due() const { return report_ == Report::kDue; }
  void NoteReported() {
    report_ = Report::kSaid;
    has_reported_ = true;
  }
  // Some coordd has been told; it may be one before the one that asks for another report.
  bool has_reported() const { return has_reported_; }
  bool reports_sets() const { return reports_sets_; }
  const std::vector<v1::Departure>& departures() const { return departures_; }

  // The program has come to a point at which others may join; told to each coordd.
  void AskForChange() { asked_for_change_ = true; }
  bool asked_for_change() const { return asked_for_change_; }

 private:
  enum class Report { kNotAsked, kDue, kSaid };  // what has become of the generation here

  OnFailure on_failure_;
  Phase phase_ = Phase::kLive;
  absl::Status end_;
  absl::Status change_;
  std::optional<v1::Abort> held_abort_;
  absl::Time held_until_;
  Report report_ = Report::kNotAsked;
  bool reports_sets_ = false;  // coordd wants to know the process sets
  bool has_reported_ = false;
  bool asked_for_change_ = false;
  std::vector<v1::Departure> departures_;  // as coordd has named them
};

}  // namespace coordd
