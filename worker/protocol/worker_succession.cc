#include "worker/protocol/worker_succession.h"

#include "worker/execute/worker_errors.h"

namespace coordd {

WorkerSuccession WorkerSuccession::Next() const {
  WorkerSuccession next(on_failure_);
  next.change_ = why();
  // Of one that continues the program knows nothing, unless this rank has said goodbye.
  if (continues()) next.end_ = end_;
  if (!next.end_.ok()) next.phase_ = Phase::kEnding;
  return next;
}

void WorkerSuccession::End(absl::Status why, bool abort, bool followed, const WorkerTurn& turn) {
  const bool aborts = abort && !aborted();
  if (end_.ok() || aborts) {
    end_ = followed ? GenerationChanged(std::move(why)) : std::move(why);
    turn.out.push_back(GenerationEnded{end_, /*for_good=*/!followed});
    phase_ = followed ? Phase::kChanging : aborted() ? Phase::kAborted : Phase::kEnding;
  }
  if (!aborts) return;
  turn.out.push_back(AbortExecution{});
  if (!followed) phase_ = Phase::kAborted;
}

void WorkerSuccession::Interrupt(const absl::Status& why, const WorkerTurn& turn) {
  phase_ = Phase::kChanging;
  change_ = GenerationChanged(why);
  turn.out.push_back(AbortExecution{});
  turn.out.push_back(GenerationInterrupted{});
}

void WorkerSuccession::EndForGood(absl::Status why, const WorkerTurn& turn) {
  phase_ = Phase::kAborted;
  report_ = Report::kNotAsked;
  end_ = std::move(why);
  turn.out.push_back(GenerationEnded{end_});
}

bool WorkerSuccession::EndByGoodbye(const WorkerTurn& turn) {
  if (!end_.ok()) return false;
  end_ = absl::CancelledError("this worker has left the job");
  turn.out.push_back(GenerationEnded{end_});
  if (live()) phase_ = Phase::kEnding;
  return true;
}

std::optional<v1::Abort> WorkerSuccession::TakeHeldAbort(bool executes, absl::Time now) {
  if (!holds_abort() || (executes && now < held_until_)) return std::nullopt;
  std::optional<v1::Abort> abort = std::exchange(held_abort_, std::nullopt);
  abort->set_asked(false);
  return abort;
}

void WorkerSuccession::OnAbort(const v1::Abort& abort) {
  reports_sets_ = abort.report_process_sets();
  departures_.assign(abort.departures().begin(), abort.departures().end());
  if (!expects_next() || !abort.reforms()) {
    report_ = Report::kNotAsked;
  } else if (report_ != Report::kSaid) {
    report_ = Report::kDue;
  }
}

}  // namespace coordd
