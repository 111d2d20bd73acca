#include "server/generation/wake_rule.h"

#include <algorithm>

#include "common/protocol/tensor_spec.h"
#include "server/members/node_members.h"

namespace coordd {

bool WakeRule::IsReport(const v1::WorkerMessage& message) {
  if (!message.has_tensors_ready()) return false;
  const v1::TensorsReady& ready = message.tensors_ready();
  const auto of_all = [](const auto& reported) { return reported.process_set() == 0; };
  return std::all_of(ready.cached().begin(), ready.cached().end(), of_all) &&
         std::all_of(ready.tensors().begin(), ready.tensors().end(),
                     [&](const v1::TensorSpec& tensor) {
                       return of_all(tensor) && !IsPairwise(static_cast<CollectiveKind>(
                                                    tensor.kind()));  // which is a set of two
                     });
}

WakeRule::Worth WakeRule::Hear(const Report& report) {
  const auto it = streams_.find(report.stream);
  if (it == streams_.end()) return Worth::kTurn;
  Stream& stream = it->second;
  Round& round = *stream.round;
  if (stream.since != round.since) {
    // The round began with the turn that was under way when it last spoke, or later.
    stream.in_round = stream.turn == round.since ? stream.in_turn : 0;
    stream.since = round.since;
  }
  if (stream.turn != turn_) {
    stream.turn = turn_;
    stream.in_turn = 0;
  }
  if (round.turn != turn_) {
    round.turn = turn_;
    round.spoken_in_turn = 0;
  }
  const auto add = [&](int32_t& words) {
    const bool had_spoken = words >= stream.members;
    words = std::min(stream.members, words + std::min(report.words, stream.members));
    return !had_spoken && words >= stream.members;
  };
  const bool is_last = add(stream.in_round) && round.silent > 0 && --round.silent == 0;
  if (add(stream.in_turn)) ++round.spoken_in_turn;
  if (!report.is_nothing_else) return Worth::kTurn;
  if (round.silent > 0 || deciding_) return Worth::kWaits;
  return is_last ? Worth::kCompletes : Worth::kTurn;
}

void WakeRule::Taken() {
  ++turn_;
  deciding_ = true;
}

bool WakeRule::Decided(absl::Span<const MembersReports> jobs) {
  deciding_ = false;
  bool worth = false;
  for (const MembersReports& job : jobs) {
    Round& round = RoundOf(job);
    round.seen = turn_;
    if (!job.all_are_asked) {
      round.silent = 0;
    } else if (job.none_is_pending && round.made < turn_) {  // all since Taken is counted
      const int32_t spoken = round.turn == turn_ ? round.spoken_in_turn : 0;
      round.since = turn_;
      round.silent = static_cast<int32_t>(round.streams.size()) - spoken;
    }
    worth = worth || (round.turn == turn_ && round.silent == 0);
  }
  const auto gone = [&](const std::shared_ptr<Round>& round) {
    if (round->seen == turn_) return false;
    worth = worth || round->turn == turn_;
    Forget(*round);
    return true;
  };
  std::erase_if(rounds_, gone);
  return worth;
}

WakeRule::Round& WakeRule::RoundOf(const MembersReports& job) {
  const SessionId first = job.members->front();
  const auto known = streams_.find(NodeMembers::StreamOf(first));
  if (known != streams_.end()) {
    Round& round = *known->second.round;
    if (round.generation == job.generation && round.first_member == first) return round;
  }
  auto round = std::make_shared<Round>();
  round->generation = job.generation;
  round->first_member = first;
  round->made = turn_;
  for (SessionId member : *job.members) {
    Stream& stream = streams_[NodeMembers::StreamOf(member)];
    if (stream.round != round) {
      stream = Stream{.round = round};
      round->streams.push_back(NodeMembers::StreamOf(member));
    }
    ++stream.members;
  }
  return *rounds_.emplace_back(std::move(round));
}

void WakeRule::Forget(const Round& round) {
  for (SessionId stream : round.streams) {
    const auto it = streams_.find(stream);
    if (it != streams_.end() && it->second.round.get() == &round) streams_.erase(it);
  }
}

}  // namespace coordd
