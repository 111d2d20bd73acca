#include "server/job/current_generation.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// What a generation leaves: of all of it, or of what was pending when it ended.
class GenerationRemains final : public Remains {
 public:
  using Part = int64_t (GenerationState::*)(int64_t);
  GenerationRemains(std::shared_ptr<GenerationState> of, Part part)
      : of_(std::move(of)), part_(part) {}

  int64_t Free(int64_t most) override { return (*of_.*part_)(most); }

 private:
  const std::shared_ptr<GenerationState> of_;
  const Part part_;
};

}  // namespace

void CurrentGeneration::End(const Turn& turn) {
  state_->End(turn.effects);
  turn.Bury(std::make_unique<GenerationRemains>(state_, &GenerationState::FreePending));
}

void CurrentGeneration::Bury(const Turn& turn) {
  turn.Bury(std::make_unique<GenerationRemains>(std::move(state_), &GenerationState::Free));
}

absl::Status CurrentGeneration::OnMessage(Rank rank, const v1::WorkerMessage& message,
                                          const Turn& turn) {
  if (message.has_tensors_ready()) {
    COORDD_RETURN_IF_ERROR(ValidateTensorsReady(message.tensors_ready()));
  } else if (message.has_tensors_withdrawn()) {
    COORDD_RETURN_IF_ERROR(ValidateTensorsWithdrawn(message.tensors_withdrawn()));
  } else if (message.has_process_set_request()) {
    COORDD_RETURN_IF_ERROR(ValidateProcessSetRequest(message.process_set_request()));
  }
  if (!intact()) return absl::OkStatus();
  switch (message.body_case()) {
    case v1::WorkerMessage::kTensorsReady:
      return state_->OnTensorsReady(rank, message.tensors_ready(), turn);
    case v1::WorkerMessage::kTensorsWithdrawn:
      state_->OnTensorsWithdrawn(rank, message.tensors_withdrawn(), turn);
      return absl::OkStatus();
    case v1::WorkerMessage::kProcessSetRequest:
      return state_->OnProcessSetRequest(rank, message.process_set_request(), turn);
    case v1::WorkerMessage::kScheduleAck:
      return state_->OnScheduleAck(rank, message.schedule_ack());
    case v1::WorkerMessage::kFreezeReply:
      return state_->OnFreezeReply(rank, message.freeze_reply(), turn);
    case v1::WorkerMessage::kScheduleFinished:
      return state_->OnScheduleFinished(rank, message.schedule_finished());
    default:
      COORDD_RETURN_IF_ERROR(ValidateScheduleBreak(message.schedule_break()));
      return state_->OnScheduleBreak(rank, message.schedule_break(), turn.effects);
  }
}

std::vector<TraceState::Member> CurrentGeneration::Traced(const JobWorkers& workers) const {
  std::vector<TraceState::Member> by_rank;
  for (int32_t rank = 0; rank < state_->size(); ++rank) {
    const SessionId session = state_->session_of(Rank{rank});
    const v1::Join& join = workers.at(session).join;
    by_rank.push_back({session, join.traces(), join.host().hostname(), join.pid()});
  }
  return by_rank;
}

bool CurrentGeneration::Worsen(Damage damage) {
  if (damage <= damage_) return false;
  damage_ = damage;
  return true;
}

v1::Abort CurrentGeneration::AbortOf(bool reforms) const {
  v1::Abort abort;
  abort.set_reason(reason_);
  abort.set_in_flight(damage_ != Damage::kLeft);
  abort.set_reforms(reforms);
  abort.set_asked(damage_ == Damage::kAsked);
  abort.set_report_process_sets(reforms && !knows_sets_);
  for (const v1::Departure& departure : departed_) *abort.add_departures() = departure;
  return abort;
}

bool CurrentGeneration::HasLeft(Rank rank) const {
  return std::any_of(departed_.begin(), departed_.end(), [rank](const v1::Departure& departure) {
    return departure.rank() == ToInt(rank) && (departure.cause() == v1::DEPARTURE_CAUSE_LEFT ||
                                               departure.cause() == v1::DEPARTURE_CAUSE_DRAINED);
  });
}

void CurrentGeneration::DropOld(const std::string& worker_id, SessionId session) {
  const auto old = old_.find(worker_id);
  if (old != old_.end() && old->second == session) old_.erase(old);
}

std::optional<SessionId> CurrentGeneration::OldOf(const std::string& worker_id) const {
  const auto old = old_.find(worker_id);
  if (old == old_.end()) return std::nullopt;
  return old->second;
}

}  // namespace coordd
