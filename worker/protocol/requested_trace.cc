#include "worker/protocol/requested_trace.h"

#include <utility>

namespace coordd {

void RequestedTrace::On(const v1::Trace& trace, const Context& context) {
  switch (trace.action()) {
    case v1::TRACE_ACTION_BEGIN:
      *this = RequestedTrace();
      id_ = trace.id();
      lane_ = LaneId{trace.lane()};
      bytes_max_ = trace.bytes_max();
      context.turn.out.push_back(TraceBegin{trace.bytes_max()});
      return AnswerBegin(context);
    case v1::TRACE_ACTION_UNTIL:
      if (trace.id() != id_ || context.schedules.Find(lane_) == nullptr) return;
      from_cycle_ = trace.from_cycle();
      until_cycle_ = trace.until_cycle();
      return EndIfComplete(context);
    case v1::TRACE_ACTION_END:
      if (trace.id() == id_) End(/*send=*/true, context);
      return;
    default:
      return;  // what a newer coordd may want besides
  }
}

void RequestedTrace::AnswerBegin(const Context& context) const {
  v1::WorkerMessage message;
  v1::TraceChunk& chunk = *message.mutable_trace_chunk();
  chunk.set_id(id_);
  chunk.set_begun(true);
  const ScheduledWork::Scheduled* scheduled = context.schedules.Find(lane_);
  if (scheduled != nullptr) {
    const ScheduledLane& lane = *scheduled->lane;
    const int64_t batches = lane.batches_per_cycle();
    chunk.set_cycles((lane.launched() + batches - 1) / batches);
  }
  context.session.Send(std::move(message), context.turn);
}

void RequestedTrace::EndIfComplete(const Context& context) {
  const ScheduledWork::Scheduled* scheduled = context.schedules.Find(lane_);
  if (scheduled == nullptr || scheduled->marks->cycles() < until_cycle_) return;
  End(/*send=*/true, context);
}

void RequestedTrace::End(bool send, const Context& context) {
  if (id_ == 0) return;
  TraceEnd end;
  end.send = send && context.session.can_send();
  context.session.Stamp(end.chunk);
  end.chunk.mutable_trace_chunk()->set_id(id_);
  const ClockOffset& clock = context.session.heartbeats().clock();
  end.clock = {clock.known(), clock.offset(), clock.error(context.turn.now)};
  end.bytes_max = bytes_max_;
  const ScheduledWork::Scheduled* scheduled = context.schedules.Find(lane_);
  if (until_cycle_ > 0 && scheduled != nullptr) {
    end.lane = lane_;
    end.batches_per_cycle = scheduled->lane->batches_per_cycle();
    end.from_cycle = from_cycle_;
    end.until_cycle = until_cycle_;
  }
  *this = RequestedTrace();
  context.turn.out.push_back(std::move(end));
}

}  // namespace coordd
