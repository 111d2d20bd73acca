// A rank whose connection to coordd is lost, while its generation goes on: how it comes back.
// docs/design/recovery.md, part B.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/execute/worker_errors.h"
#include "worker/protocol/worker_state.h"

namespace coordd {
namespace {

// Fills the messages of one report, each up to kMaxReportBytes.
class ReportParts {
 public:
  ReportParts() { parts_.emplace_back(); }

  // Where the next entry, of about so many bytes, goes.
  v1::ResumeReport& For(int64_t bytes) {
    bytes += kFramingBytes;
    if (bytes_ > 0 && bytes_ + bytes > kMaxReportBytes) {
      parts_.back().set_more(true);
      parts_.emplace_back();
      bytes_ = 0;
    }
    bytes_ += bytes;
    return parts_.back();
  }
  std::vector<v1::ResumeReport> Take() { return std::move(parts_); }

 private:
  static constexpr int64_t kFramingBytes = 16;
  std::vector<v1::ResumeReport> parts_;
  int64_t bytes_ = 0;
};

}  // namespace

void WorkerState::Log(v1::CoordinatorMessage message) {
  if (message.position() == 0 || options_.cluster_id.empty() || !end_.ok() || expects_next_) return;
  if (message.position() <= log_.position()) return;  // of a coordd that counts wrongly
  ProcessSetId to;
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kPlan:
      if (message.plan().batches().empty()) return;
      to = ProcessSetId{message.plan().batches(0).process_set()};
      break;
    case v1::CoordinatorMessage::kSchedule:
      to = ProcessSetId{message.schedule().process_set()};
      break;
    case v1::CoordinatorMessage::kFreeze:
    case v1::CoordinatorMessage::kCut:
      to = to_;
      break;
    case v1::CoordinatorMessage::kProcessSetChange:
      // A pair is announced to the two alone.
      if (message.process_set_change().request() == 0)
        to = ProcessSetId{message.process_set_change().process_set()};
      break;
    default:
      return;
  }
  log_.Add(to, std::move(message));
}

bool WorkerState::MayResume(const absl::Status& ended) const {
  if (goodbye_.failing()) return false;
  // A goodbye that was not answered is said again: or coordd would wait for this rank.
  if (!end_.ok() && !left_ && !expects_next_) return false;
  return session_.MayResume(ended);
}

void WorkerState::Detach(const absl::Status& why, const WorkerTurn& turn) {
  if (attached()) EndTrace(/*send=*/false, turn);  // nobody collects it any more
  session_.Detach(why, turn.now);
  asked_abort_.reset();  // as if it had not been heard: coordd says it again
  left_ = false;
  reforms_ = false;  // the next coordd says it again, or what has become of it
  arriving_.reset();
  // coordd will not say who was lost. (Of a generation that is over they come back in the next.)
  if (launched_.awaits_verdict() && !expects_next_) launched_.SetVerdictDeadline(turn.now);
}

void WorkerState::TryAgain(const WorkerTurn& turn) {
  if (session_.HasTimedOut(turn.now)) {
    GiveUp(GenerationEndedError(options_.generation, session_.TimeoutText(),
                                absl::StatusCode::kUnavailable),
           turn);
    session_.End();
    return;
  }
  if (session_.TakeAttempt(turn)) SendResume(turn);
}

void WorkerState::SendResume(const WorkerTurn& turn) {
  const absl::StatusOr<int64_t> answered = process_sets_.AnsweredRequests();
  if (!answered.ok()) {
    GiveUp(GenerationEndedError(
               options_.generation,
               absl::StrCat("this rank cannot come back to coordd: ", answered.status().message())),
           turn);
    return;
  }
  v1::WorkerMessage hello;
  *hello.mutable_join() = options_.join;
  v1::Resume& resume = *hello.mutable_join()->mutable_resume();
  resume.set_session(session_.number());
  resume.set_epoch(ToInt(session_.epoch()));
  resume.set_generation(ToInt(options_.generation));
  resume.set_position(log_.position());
  resume.set_cluster_id(options_.cluster_id);
  resume.set_rank(ToInt(options_.rank));
  turn.out.push_back(SendMessage{std::move(hello)});
  for (v1::ResumeReport& part : ResumeReports(*answered)) {
    v1::WorkerMessage message;
    session_.Stamp(message);
    *message.mutable_resume_report() = std::move(part);
    turn.out.push_back(SendMessage{std::move(message)});
  }
}

std::vector<v1::ResumeReport> WorkerState::ResumeReports(int64_t answered_requests) const {
  ReportParts parts;
  v1::ResumeReport& first = parts.For(0);
  if (expects_next_) {
    // What it had heard, and had not, is of no use any more.
    const absl::Status& why = continues() ? change_ : end_;
    first.set_over(ShortenedText(why.message(), kMaxReasonBytes));
    first.mutable_departures()->Assign(departures_.begin(), departures_.end());
    return parts.Take();
  }
  first.set_last_process_set(last_process_set_);
  first.set_last_schedule(schedules_.last_id());
  first.set_answered_requests(answered_requests);
  for (const LaneProgress& lane : launched_.Progress()) {
    v1::LanePosition& position = *parts.For(32).add_lanes();
    position.set_lane(ToInt(lane.lane));
    position.set_launched(lane.launched);
    position.set_completed(lane.completed);
  }
  log_.ForEach([&](ProcessSetId to, const v1::CoordinatorMessage& message) {
    v1::ResumeReport& part = parts.For(static_cast<int64_t>(message.ByteSizeLong()));
    *part.add_received() = message;
    part.add_received_by(ToInt(to));
  });
  for (const auto& [set, position] : log_.forgotten()) {
    v1::ForgottenMessages& forgotten = *parts.For(16).add_forgotten();
    forgotten.set_process_set(ToInt(set));
    forgotten.set_position(position);
  }
  for (v1::ProcessSetChange& change : process_sets_.SetsOfFirstRank()) {
    const int64_t bytes = static_cast<int64_t>(change.ByteSizeLong());
    *parts.For(bytes).add_process_sets() = std::move(change);
  }
  for (const auto& [id, set] : log_.ended())
    *parts.For(static_cast<int64_t>(set.ByteSizeLong())).add_process_sets() = set;
  for (const auto& [id, scheduled] : schedules_.lanes()) {
    const ScheduledLane& lane = *scheduled.lane;
    if (lane.cut() || !process_sets_.IsFirstOf(lane.process_set())) continue;
    // In parts as small as a batch, as it may have come.
    const size_t batches = static_cast<size_t>(lane.batches_per_cycle());
    for (size_t batch = 0; batch < batches; ++batch) {
      v1::Schedule schedule;
      schedule.set_id(lane.id());
      schedule.set_lane(ToInt(lane.lane()));
      schedule.set_process_set(ToInt(lane.process_set()));
      schedule.set_more(batch + 1 < batches);
      v1::ScheduledBatch& specs = *schedule.add_batches();
      for (const TensorSpec* spec : lane.SpecsOf(batch)) ToProto(*spec, specs.add_tensors());
      const int64_t bytes = static_cast<int64_t>(schedule.ByteSizeLong());
      *parts.For(bytes).add_schedules() = std::move(schedule);
    }
    if (scheduled.frozen) parts.For(10).add_frozen_schedules(lane.id());
  }
  return parts.Take();
}

bool WorkerState::IsOfThisSession(const CoordinatorSaid& in, const WorkerTurn& turn) {
  const absl::StatusOr<bool> heard = session_.Hears(in.stream, in.message.epoch());
  if (heard.ok()) return *heard;
  GiveUp(GenerationEndedError(options_.generation, heard.status().message()), turn);
  return false;
}

void WorkerState::OnResumed(const v1::Resumed& resumed, const WorkerTurn& turn) {
  if (!end_.ok() && !expects_next_) return;
  if (!session_.resuming()) {
    ProtocolError("coordd resumed a session that was not interrupted", turn);
    return;
  }
  session_.Resumed(resumed.session());
  for (int64_t position : resumed.open_ends()) log_.Keep(position);
  schedules_.ForgetIncoming();  // of a schedule that nobody has heard to its end
  slots_.Clear(resumed.slots());
  session_.Reattach(turn.now);
  // coordd tells whom it knows to leave; its word may have changed.
  if (drain_until_ != absl::InfiniteFuture() && !drain_asked_.has_value())
    SetDrain(absl::InfiniteFuture(), turn);
  AskToLeave(turn);
  if (expects_next_) {  // since it has said where it stands
    SendFailed(BatchKey{LaneId{0}, 0}, "", (continues() ? change_ : end_).message(), std::nullopt,
               turn);
    return;
  }
  if (const auto answered = process_sets_.AnsweredRequests(); !answered.ok()) {
    ProtocolError(answered.status().message(), turn);
    return;
  }
  ReportAnew(turn);
  // The end of one that executes will be said.
  if (resumed.wants_schedule_finished() && !schedules_.HasDeviceLane())
    schedules_.SendFinished(0, ForSchedules(turn));
}

// Everything that has no answer, in the order in which it was said.
void WorkerState::ReportAnew(const WorkerTurn& turn) {
  pending_.ForgetReports();
  // Who has joined asks for nothing more: the join is behind the requests.
  SendAll(pending_.Report(slots_, /*join_waits=*/true), turn);
  for (v1::ProcessSetRequest& request : process_sets_.AskAnew(turn.now)) {
    v1::WorkerMessage message;
    *message.mutable_process_set_request() = std::move(request);
    Send(std::move(message), turn);
  }
  Report(turn);
  SendAll(pending_.WithdrawAnew(turn.now), turn);
  schedules_.ReportAnew(ForSchedules(turn));
  AskForChange(turn);
}

}  // namespace coordd
