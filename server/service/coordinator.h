// Takes what has come in, lets CoordinatorState decide, carries the decisions out: a turn, one at a
// time, on its own thread or on that which brings the last report of a round (Inbox). (io)
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "server/job/coordinator_state.h"
#include "server/model/event_log.h"
#include "server/service/event_lines.h"
#include "server/service/inbox.h"

namespace coordd {

class CallerShares;
class ServerMetrics;
struct RestoredState;

// What carries decisions out. All are called by whoever has the turn, one at a time, and never
// block.
struct CoordinatorOutlets {
  std::function<void(const Deliver&)> deliver;
  std::function<void(const CloseSession&)> close_session;
  std::function<void(SessionId)> session_ended;  // after the state has seen SessionEnded
  std::function<void(StoreReply&&)> store_reply;
  std::function<void(TraceAnswer&&)> trace_answer = {};      // never called without a TraceCall
  std::function<void(ExitsAnswer&&)> exits_answer = {};      // nor this without ExitsReported
  std::function<void(DismissAnswer&&)> dismiss_answer = {};  // nor this without a DismissCall
  std::function<void(Persist&&)> persist = {};  // never called without something restored
  std::function<void(const Event&)> event;      // after it was logged and counted
  // Deadlines of the sessions themselves (first message, slow close), which the state does not
  // know.
  std::function<void(absl::Time now)> tick;
  std::function<absl::Time()> next_deadline;
  CallerShares* shares = nullptr;  // null: callers have no share
};

// Thread-safe but for Start and Stop, which its owner calls.
class Coordinator {
 public:
  // Remembers nothing: for tests of what is around it.
  Coordinator(const ServerOptions& options, Epoch epoch, Clock& clock, ServerMetrics& metrics);
  // Goes on from what was stored; what is to be stored goes to CoordinatorOutlets::persist.
  Coordinator(const ServerOptions& options, const RestoredState& restored, Clock& clock,
              ServerMetrics& metrics);
  ~Coordinator();  // Stop

  // Starts the thread "coordinator".
  void Start(CoordinatorOutlets outlets);

  Inbox& inbox() { return inbox_; }
  const EventLog& events() const { return events_; }

  // The state of all jobs for operators, in parts over turns: each job is as it was at one time.
  // Blocks the caller. UNAVAILABLE: coordd is stopping, busy, or did not answer by `deadline`.
  // `took`, unless it is null: how long turns were kept by that, together.
  absl::StatusOr<v1::ServerState> Describe(absl::Time deadline, absl::Duration* took = nullptr);
  // Whether coordd takes turns. UNAVAILABLE: as Describe, which costs more.
  absl::Status Answers(absl::Time deadline);

  // Tells the state to stop, carries out what it decides, answers what is queued, ends the thread.
  // Idempotent. `resume_within`: as StopRequested.
  void Stop(const std::string& reason, absl::Duration resume_within = absl::ZeroDuration());

 private:
  // Asks the state in one of the next turns.
  template <typename Answer>
  absl::StatusOr<Answer> Ask(std::function<Answer(const CoordinatorState&, absl::Time)> question,
                             absl::Time deadline);
  void Run();
  // REQUIRES: the turn is the caller's (Inbox).
  void TakeTurn();
  void Turn(std::vector<Inbox::Received>& batch);  // leaves it empty
  void Step(const Inbound& in, absl::Time at, Effects& effects);
  void StepExits(const ExitsReported& exits, const Inbound& in, absl::Time at, Effects& effects);
  void CarryOut(Effects& effects);
  void Tell(const Effects& effects, absl::Time now);

  // Constant after construction, but for outlets_, set before the thread starts.
  Clock& clock_;
  ServerMetrics& metrics_;
  CoordinatorOutlets outlets_;

  // Thread-safe by themselves.
  Inbox inbox_;
  EventLog events_;

  // Touched by whoever has the turn, once the thread has started.
  Effects at_start_;  // of the state's construction, carried out in the first turn
  CoordinatorState state_;
  EventLines lines_;
  absl::Time last_turn_ = absl::InfinitePast();
  std::vector<Inbox::Received> batch_;  // for its memory

  // Touched by the owner only.
  std::thread thread_;
  bool stopped_ = false;
};

}  // namespace coordd
