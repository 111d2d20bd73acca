// A trace of all ranks that coordd collects, as far as this rank takes part in it.
#pragma once

#include <cstdint>

#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "worker/protocol/coordinator_session.h"
#include "worker/protocol/scheduled_work.h"
#include "worker/protocol/turn.h"

namespace coordd {

// PURE; part of WorkerState. docs/PROTOCOL.md, Traces.
//
// Invariant: each TraceBegin is followed by one TraceEnd, unless another TraceBegin comes first.
class RequestedTrace {
 public:
  // What a call may use besides.
  struct Context {
    const WorkerTurn& turn;
    const ScheduledWork& schedules;
    const CoordinatorSession& session;
  };

  void On(const v1::Trace& trace, const Context& context);
  // Batches have ended: ends it if that was the last repetition that coordd wants.
  void EndWhenComplete(const Context& context) {
    if (until_cycle_ > 0) EndIfComplete(context);
  }
  // `send`: what was recorded, if there is somebody to hear it.
  void End(bool send, const Context& context);

 private:
  void AnswerBegin(const Context& context) const;
  void EndIfComplete(const Context& context);

  int64_t id_ = 0;  // 0: nothing is recorded for coordd
  LaneId lane_;     // whose repetitions are steps; 0: none
  int64_t bytes_max_ = 0;
  int64_t from_cycle_ = 0, until_cycle_ = 0;  // 0: until coordd says so
};

}  // namespace coordd
