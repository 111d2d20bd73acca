#include "server/job/trace_state.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"

namespace coordd {

absl::Status TraceState::Check(const v1::TraceRequest& request) const {
  if (under_way()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", request.job(), " is being traced already: wait for that to end"));
  }
  const bool by_steps =
      request.steps() > 0 && request.steps() <= kStepsMax && request.seconds() == 0;
  const bool by_time =
      request.steps() == 0 && request.seconds() > 0 && request.seconds() <= kSecondsMax;
  if (by_steps || by_time) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a trace of ", Counted(request.steps(), "step"), " and ", request.seconds(),
                   request.seconds() == 1 ? " second" : " seconds", ", expected 1 to ", kStepsMax,
                   " steps or up to ", kSecondsMax, " seconds"));
}

absl::Status TraceState::Begin(const TraceCall& call, const v1::CoordinatorMessage& prototype,
                               std::vector<Member> by_rank, LaneId steps, const Turn& turn) {
  COORDD_RETURN_IF_ERROR(Check(call.request));
  if (std::none_of(by_rank.begin(), by_rank.end(), [](const Member& m) { return m.traces; })) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no rank of job ", call.request.job(), " can be traced: they are of an older version"));
  }
  ++last_id_;
  phase_ = Phase::kBeginning;
  call_ = call.call;
  prototype_ = prototype;
  began_at_ = turn.now;
  deadline_ = turn.now + kBeginWait;
  reply_.set_job(call.request.job());
  reply_.set_generation(prototype.generation());
  reply_.set_size(static_cast<int32_t>(by_rank.size()));
  lane_ = call.request.steps() > 0 ? steps : LaneId{0};
  seconds_ = absl::Seconds(call.request.seconds());
  if (ToInt(lane_) != 0) {
    reply_.set_lane(ToInt(lane_));
    reply_.set_steps(call.request.steps());
  } else if (call.request.steps() > 0) {
    seconds_ = absl::Seconds(std::min<double>(call.request.steps(), kSecondsMax));
    AddNote(absl::StrCat("the job has no schedule, whose repetitions would be steps: this is ",
                         absl::FormatDuration(seconds_)));
  }
  if (by_rank.size() > kRanksMax) {
    AddNote(absl::StrCat("these are the first ", kRanksMax, " of ", by_rank.size(), " ranks"));
    by_rank.resize(kRanksMax);
  }
  for (Member& member : by_rank) {
    v1::TraceRank& rank = *reply_.add_ranks();
    rank.set_rank(reply_.ranks_size() - 1);
    rank.set_hostname(member.hostname);
    rank.set_pid(member.pid);
    if (!member.traces) rank.set_missing("it is of an older version, which cannot be traced");
    const bool done = !member.traces;
    asked_.push_back({std::move(member), done, done});
  }
  bytes_of_rank_ = std::min(kBytesOfRankMax, kBytesMax / static_cast<int64_t>(asked_.size()));
  Deliver(v1::TRACE_ACTION_BEGIN, turn.effects);
  return absl::OkStatus();
}

void TraceState::Deliver(v1::TraceAction action, Effects& effects) const {
  auto message = std::make_shared<v1::CoordinatorMessage>(prototype_);
  v1::Trace& trace = *message->mutable_trace();
  trace.set_id(last_id_);
  trace.set_action(action);
  if (action == v1::TRACE_ACTION_BEGIN) {
    trace.set_lane(ToInt(lane_));
    trace.set_bytes_max(bytes_of_rank_);
  } else if (action == v1::TRACE_ACTION_UNTIL) {
    trace.set_from_cycle(from_cycle_);
    trace.set_until_cycle(from_cycle_ + reply_.steps());
  }
  coordd::Deliver deliver;
  for (const Asked& asked : asked_)
    if (!asked.done) deliver.to.push_back(asked.member.session);
  if (deliver.to.empty()) return;
  deliver.message = std::move(message);
  effects.outgoing.push_back(std::move(deliver));
}

void TraceState::OnChunk(Rank rank, const v1::TraceChunk& chunk, const Turn& turn) {
  const size_t index = static_cast<size_t>(ToInt(rank));
  if (!under_way() || chunk.id() != last_id_ || index >= asked_.size()) return;
  Asked& asked = asked_[index];
  if (asked.done) return;
  if (chunk.begun() && !asked.begun) {
    asked.begun = true;
    from_cycle_ = std::max(from_cycle_, chunk.cycles());
    if (phase_ == Phase::kBeginning) WhenAllHaveBegun(turn);
    return;
  }
  v1::TraceRank& told = *reply_.mutable_ranks(static_cast<int>(index));
  if (!chunk.batches().empty())
    asked.bytes += kChunkCosts + static_cast<int64_t>(chunk.batches().size());
  if (asked.bytes > bytes_of_rank_) {
    told.set_missing("it sent more than was asked for");
  } else if (!chunk.batches().empty()) {
    told.add_batches(chunk.batches());
  }
  if (!chunk.last()) return;
  told.set_dropped(chunk.dropped());
  asked.done = true;
  WhenAllAreDone(turn);
}

void TraceState::WhenAllHaveBegun(const Turn& turn) {
  const bool all = std::all_of(asked_.begin(), asked_.end(),
                               [](const Asked& asked) { return asked.begun || asked.done; });
  if (all) Record(turn);
}

void TraceState::Record(const Turn& turn) {
  phase_ = Phase::kRecording;
  if (ToInt(lane_) == 0) {
    deadline_ = turn.now + seconds_;
    return;
  }
  deadline_ = turn.now + kStepsWait;
  Deliver(v1::TRACE_ACTION_UNTIL, turn.effects);
}

void TraceState::Collect(const Turn& turn) {
  phase_ = Phase::kCollecting;
  deadline_ = turn.now + kSendWait;
  Deliver(v1::TRACE_ACTION_END, turn.effects);
  WhenAllAreDone(turn);
}

void TraceState::OnGone(Rank rank, const std::string& why, const Turn& turn) {
  const size_t index = static_cast<size_t>(ToInt(rank));
  if (!under_way() || index >= asked_.size() || asked_[index].done) return;
  asked_[index].done = true;
  reply_.mutable_ranks(static_cast<int>(index))->set_missing(why);
  WhenAllAreDone(turn);
}

void TraceState::OnAllGone(const std::string& why, const Turn& turn) {
  for (size_t rank = 0; under_way() && rank < asked_.size(); ++rank)
    OnGone(Rank{static_cast<int32_t>(rank)}, why, turn);
}

void TraceState::EndEarly(const std::string& why, const Turn& turn) {
  if (!under_way() || phase_ == Phase::kCollecting) return;
  AddNote(why);
  Collect(turn);
}

void TraceState::Tick(const Turn& turn) {
  if (turn.now < deadline_) return;
  if (phase_ == Phase::kBeginning) return Record(turn);
  if (phase_ == Phase::kRecording) {
    if (ToInt(lane_) != 0) {
      AddNote(absl::StrCat("not all ranks came to the end of step ", reply_.steps(), " within ",
                           absl::FormatDuration(kStepsWait)));
    }
    return Collect(turn);
  }
  for (size_t i = 0; i < asked_.size(); ++i) {
    if (asked_[i].done) continue;
    asked_[i].done = true;
    reply_.mutable_ranks(static_cast<int>(i))
        ->set_missing(absl::StrCat("it did not send what it recorded within ",
                                   absl::FormatDuration(kSendWait)));
  }
  WhenAllAreDone(turn);
}

void TraceState::WhenAllAreDone(const Turn& turn) {
  if (!under_way()) return;
  const bool all =
      std::all_of(asked_.begin(), asked_.end(), [](const Asked& asked) { return asked.done; });
  if (!all) return;
  reply_.set_seconds(absl::ToDoubleSeconds(turn.now - began_at_));
  turn.effects.outgoing.push_back(TraceAnswer{.call = call_, .reply = std::move(reply_)});
  Reset();
}

void TraceState::Cancel(CallId call, Effects& effects) {
  if (!under_way() || call != call_) return;
  Deliver(v1::TRACE_ACTION_END, effects);  // what they send is ignored
  Reset();
}

void TraceState::Fail(const absl::Status& status, Effects& effects) {
  if (!under_way()) return;
  effects.outgoing.push_back(TraceAnswer{.call = call_, .status = status});
  Reset();
}

void TraceState::AddNote(const std::string& note) {
  reply_.set_note(reply_.note().empty() ? note : absl::StrCat(reply_.note(), "; ", note));
}

void TraceState::Reset() {
  phase_ = Phase::kNone;
  deadline_ = absl::InfiniteFuture();
  asked_.clear();
  reply_ = v1::TraceReply();
  from_cycle_ = 0;
}

}  // namespace coordd
