// What WorkerState does for traces of all ranks, that coordd collects (docs/PROTOCOL.md, Traces).
#include <utility>

#include "worker/protocol/worker_state.h"

namespace coordd {

void WorkerState::OnTrace(const v1::Trace& trace, absl::Time now, std::vector<WorkerEffect>& out) {
  switch (trace.action()) {
    case v1::TRACE_ACTION_BEGIN:
      tracing_ = Tracing();
      tracing_.id = trace.id();
      tracing_.lane = LaneId{trace.lane()};
      tracing_.bytes_max = trace.bytes_max();
      out.push_back(TraceBegin{trace.bytes_max()});
      return AnswerTraceBegin(out);
    case v1::TRACE_ACTION_UNTIL:
      if (trace.id() != tracing_.id || !schedules_.contains(tracing_.lane)) return;
      tracing_.from_cycle = trace.from_cycle();
      tracing_.until_cycle = trace.until_cycle();
      return EndTraceWhenComplete(now, out);
    case v1::TRACE_ACTION_END:
      if (trace.id() == tracing_.id) EndTrace(/*send=*/true, now, out);
      return;
    default:
      return;  // what a newer coordd may want besides
  }
}

void WorkerState::AnswerTraceBegin(std::vector<WorkerEffect>& out) {
  v1::WorkerMessage message;
  v1::TraceChunk& chunk = *message.mutable_trace_chunk();
  chunk.set_id(tracing_.id);
  chunk.set_begun(true);
  const auto scheduled = schedules_.find(tracing_.lane);
  if (scheduled != schedules_.end()) {
    const ScheduledLane& lane = *scheduled->second.lane;
    const int64_t batches = lane.batches_per_cycle();
    chunk.set_cycles((lane.launched() + batches - 1) / batches);
  }
  Send(std::move(message), out);
}

void WorkerState::EndTraceWhenComplete(absl::Time now, std::vector<WorkerEffect>& out) {
  const auto scheduled = schedules_.find(tracing_.lane);
  if (scheduled == schedules_.end() || scheduled->second.marks->cycles() < tracing_.until_cycle)
    return;
  EndTrace(/*send=*/true, now, out);
}

void WorkerState::EndTrace(bool send, absl::Time now, std::vector<WorkerEffect>& out) {
  if (tracing_.id == 0) return;
  TraceEnd end;
  end.send = send && !stream_ended_ && attached();
  end.chunk.set_epoch(ToInt(epoch_));
  end.chunk.set_generation(ToInt(options_.generation));
  end.chunk.mutable_trace_chunk()->set_id(tracing_.id);
  end.clock = {clock_offset_.known(), clock_offset_.offset(), clock_offset_.error(now)};
  end.bytes_max = tracing_.bytes_max;
  const auto scheduled = schedules_.find(tracing_.lane);
  if (tracing_.until_cycle > 0 && scheduled != schedules_.end()) {
    end.lane = tracing_.lane;
    end.batches_per_cycle = scheduled->second.lane->batches_per_cycle();
    end.from_cycle = tracing_.from_cycle;
    end.until_cycle = tracing_.until_cycle;
  }
  tracing_ = Tracing();
  out.push_back(std::move(end));
}

}  // namespace coordd
