// What WorkerState does for traces of all ranks, that coordd collects (docs/PROTOCOL.md, Traces).
#include <utility>

#include "worker/protocol/worker_state.h"

namespace coordd {

void WorkerState::OnTrace(const v1::Trace& trace, const WorkerTurn& turn) {
  switch (trace.action()) {
    case v1::TRACE_ACTION_BEGIN:
      tracing_ = Tracing();
      tracing_.id = trace.id();
      tracing_.lane = LaneId{trace.lane()};
      tracing_.bytes_max = trace.bytes_max();
      turn.out.push_back(TraceBegin{trace.bytes_max()});
      return AnswerTraceBegin(turn);
    case v1::TRACE_ACTION_UNTIL:
      if (trace.id() != tracing_.id || schedules_.Find(tracing_.lane) == nullptr) return;
      tracing_.from_cycle = trace.from_cycle();
      tracing_.until_cycle = trace.until_cycle();
      return EndTraceWhenComplete(turn);
    case v1::TRACE_ACTION_END:
      if (trace.id() == tracing_.id) EndTrace(/*send=*/true, turn);
      return;
    default:
      return;  // what a newer coordd may want besides
  }
}

void WorkerState::AnswerTraceBegin(const WorkerTurn& turn) {
  v1::WorkerMessage message;
  v1::TraceChunk& chunk = *message.mutable_trace_chunk();
  chunk.set_id(tracing_.id);
  chunk.set_begun(true);
  const ScheduledWork::Scheduled* scheduled = schedules_.Find(tracing_.lane);
  if (scheduled != nullptr) {
    const ScheduledLane& lane = *scheduled->lane;
    const int64_t batches = lane.batches_per_cycle();
    chunk.set_cycles((lane.launched() + batches - 1) / batches);
  }
  Send(std::move(message), turn);
}

void WorkerState::EndTraceWhenComplete(const WorkerTurn& turn) {
  const ScheduledWork::Scheduled* scheduled = schedules_.Find(tracing_.lane);
  if (scheduled == nullptr || scheduled->marks->cycles() < tracing_.until_cycle) return;
  EndTrace(/*send=*/true, turn);
}

void WorkerState::EndTrace(bool send, const WorkerTurn& turn) {
  if (tracing_.id == 0) return;
  TraceEnd end;
  end.send = send && session_.can_send();
  session_.Stamp(end.chunk);
  end.chunk.mutable_trace_chunk()->set_id(tracing_.id);
  const ClockOffset& clock = session_.heartbeats().clock();
  end.clock = {clock.known(), clock.offset(), clock.error(turn.now)};
  end.bytes_max = tracing_.bytes_max;
  const ScheduledWork::Scheduled* scheduled = schedules_.Find(tracing_.lane);
  if (tracing_.until_cycle > 0 && scheduled != nullptr) {
    end.lane = tracing_.lane;
    end.batches_per_cycle = scheduled->lane->batches_per_cycle();
    end.from_cycle = tracing_.from_cycle;
    end.until_cycle = tracing_.until_cycle;
  }
  tracing_ = Tracing();
  turn.out.push_back(std::move(end));
}

}  // namespace coordd
