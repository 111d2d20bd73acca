#include "tests/sim/schedule_sim.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/protocol_bounds.h"
#include "common/status_macros.h"
#include "tests/server/builders.h"
#include "worker/join_message.h"

namespace coordd {
namespace {

constexpr int64_t kMaxSteps = 400000;
constexpr absl::Duration kMaxTime = absl::Minutes(4);  // below the stall's end and every deadline

std::string Key(const TensorSpec& spec) {
  return absl::StrCat(spec.name, "@", ToInt(spec.process_set));
}

template <typename... Args>
absl::Status Wrong(const Args&... args) {
  return absl::InternalError(absl::StrCat(args...));
}

}  // namespace

ScheduleSim::ScheduleSim(uint64_t seed, std::vector<SimProgram> programs, PlantedBug bug,
                         SimFaults faults)
    : bug_(bug),
      faults_(faults),
      random_(seed),
      now_(absl::FromUnixSeconds(1'000'000)),
      programs_(std::move(programs)),
      ranks_(programs_.size()) {
  options_.max_batch_bytes = 4096;
  options_.stall_warning = absl::Minutes(5);
  options_.stall_abort = absl::Minutes(10);
}

absl::Status ScheduleSim::Run() {
  const absl::Time start = now_;
  COORDD_RETURN_IF_ERROR(StartCoordd());
  for (int32_t rank = 0; rank < static_cast<int32_t>(ranks_.size()); ++rank) {
    sets_[ProcessSetId{0}].push_back(rank);
    SendJoin(rank);
  }
  for (int64_t steps = 0; !Finished(); ++steps) {
    if (steps > kMaxSteps || now_ - start > kMaxTime) {
      std::string waits;
      for (size_t i = 0; i < ranks_.size(); ++i) {
        absl::StrAppend(&waits, " rank ", i, " at ", ranks_[i].next_op, "/", programs_[i].size(),
                        ":");
        for (const auto& [id, open] : ranks_[i].open) absl::StrAppend(&waits, " ", open.name);
      }
      return Wrong("no end after ", steps, " steps and ", absl::FormatDuration(now_ - start), ":",
                   waits);
    }
    COORDD_RETURN_IF_ERROR(Step());
  }
  return absl::OkStatus();
}

bool ScheduleSim::Finished() const {
  for (size_t i = 0; i < ranks_.size(); ++i)
    if (ranks_[i].next_op < programs_[i].size() || !ranks_[i].open.empty()) return false;
  return true;
}

// One thing that may happen now, chosen by chance; time passes only when nothing may.
absl::Status ScheduleSim::Step() {
  const uint64_t n = ranks_.size();
  if (coordd_ == nullptr && random_.Below(20) == 0) return StartCoordd();
  if (coordd_ != nullptr && crashes_ < faults_.crashes && random_.Below(150) == 0) return Crash();
  if (breaks_ < faults_.breaks && !all_are_back() && random_.Below(10) == 0)
    return BreakStream(static_cast<int32_t>(random_.Below(n)));
  for (int tries = 0; tries < 12; ++tries) {
    const int32_t rank = static_cast<int32_t>(random_.Below(n));
    RankState& state = ranks_[static_cast<size_t>(rank)];
    switch (random_.Below(4)) {
      case 0:
        if (!state.to_coordd.empty()) return ToCoordd(rank);
        break;
      case 1:
        if (!state.from_coordd.empty() || state.ends) return ToWorker(rank);
        break;
      case 2:
        if (state.worker != nullptr && !Blocked(state) &&
            state.next_op < programs_[static_cast<size_t>(rank)].size())
          return RunProgram(rank);
        break;
      default:
        if (!batches_.empty()) return FinishBatch();
    }
  }
  // Nothing was found by chance: look everywhere.
  for (int32_t rank = 0; rank < static_cast<int32_t>(n); ++rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    if (!state.to_coordd.empty()) return ToCoordd(rank);
    if (!state.from_coordd.empty() || state.ends) return ToWorker(rank);
    if (state.worker != nullptr && !Blocked(state) &&
        state.next_op < programs_[static_cast<size_t>(rank)].size())
      return RunProgram(rank);
    if (state.worker != nullptr && state.worker->turn_due()) {
      std::vector<WorkerEffect> out;
      TickWorker(state, out);
      return Take(rank, std::move(out));
    }
  }
  for (const auto& [key, batch] : batches_)
    if (batch.launched.size() == Members(batch.set).size()) return FinishBatch();
  if (coordd_ == nullptr) return StartCoordd();
  absl::Time next = coordd_->NextDeadline();
  for (const RankState& state : ranks_)
    if (state.worker != nullptr) next = std::min(next, state.worker->NextDeadline());
  if (next == absl::InfiniteFuture()) return Wrong("nothing will ever happen");
  now_ = std::max(now_, next);
  Effects effects;
  coordd_->Tick(now_, effects);
  COORDD_RETURN_IF_ERROR(TakeCoordd(std::move(effects)));
  for (int32_t rank = 0; rank < static_cast<int32_t>(n); ++rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    if (state.worker == nullptr) continue;
    std::vector<WorkerEffect> out;
    TickWorker(state, out);
    COORDD_RETURN_IF_ERROR(Take(rank, std::move(out)));
  }
  return absl::OkStatus();
}

bool ScheduleSim::Blocked(const RankState& rank) const {
  if (rank.asked > 0) return true;
  const SimProgram& program = programs_[static_cast<size_t>(&rank - ranks_.data())];
  if (rank.next_op >= program.size()) return true;
  return program[rank.next_op].kind == SimOp::Kind::kWait && !rank.open.empty();
}

absl::Status ScheduleSim::RunProgram(int32_t rank) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  const SimOp& op = programs_[static_cast<size_t>(rank)][state.next_op];
  // A name is pending once: a program that submits it again has waited for it.
  for (const TensorSpec& spec : op.tensors)
    for (const auto& [id, open] : state.open)
      if (open.name == Key(spec)) return absl::OkStatus();
  ++state.next_op;
  const absl::Time deadline = now_ + absl::Minutes(10);
  switch (op.kind) {
    case SimOp::Kind::kWait:
      return absl::OkStatus();
    case SimOp::Kind::kAddSet:
      ++state.asked;
      return Turn(rank, ProcessSetAsked{state.asked, ProcessSetId{}, op.ranks, deadline});
    case SimOp::Kind::kRemoveSet:
      ++state.asked;
      return Turn(rank, ProcessSetAsked{state.asked, op.set, {}, deadline});
    case SimOp::Kind::kSubmit:
    case SimOp::Kind::kJoin:
      break;
  }
  TensorsSubmitted submitted;
  std::vector<TensorSpec> tensors = op.tensors;
  if (op.kind == SimOp::Kind::kJoin) {
    tensors.emplace_back();
    tensors.back().name = kJoinName;
    tensors.back().kind = CollectiveKind::kJoin;
  }
  for (const TensorSpec& spec : tensors) {
    const TensorId id{++state.last_id};
    const int64_t instance = state.joins * kMaxSteps + ++state.instances[Key(spec)];
    state.open[id] = {Key(spec), instance, now_};
    submitted.tensors.push_back({id, spec, deadline});
  }
  // Up to a join the ranks may have done different numbers of steps.
  if (op.kind == SimOp::Kind::kJoin) {
    ++state.joins;
    state.instances.clear();
  }
  return Turn(rank, std::move(submitted));
}

absl::Status ScheduleSim::ToCoordd(int32_t rank) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  if (coordd_ == nullptr) {
    state.to_coordd.clear();  // nobody reads it
    return absl::OkStatus();
  }
  if (bug_ == PlantedBug::kReportNotDropped && state.to_coordd.size() > 1 &&
      state.to_coordd[1].has_schedule_ack() && state.to_coordd[0].has_tensors_ready()) {
    std::swap(state.to_coordd[0], state.to_coordd[1]);
  }
  SessionMessage in{state.session, std::move(state.to_coordd.front())};
  state.to_coordd.pop_front();
  if (in.message.has_tensors_ready()) ++reports_;
  if (bug_ == PlantedBug::kNoBreak && in.message.has_schedule_break()) return absl::OkStatus();
  const Inbound inbound(std::move(in));
  history_.Saw(inbound);
  Effects effects;
  coordd_->Step(inbound, now_, effects);
  if (random_.Below(2) == 0) coordd_->Tick(now_, effects);  // turns take in several messages
  return TakeCoordd(std::move(effects));
}

absl::Status ScheduleSim::TakeCoordd(Effects effects) {
  COORDD_RETURN_IF_ERROR(history_.Saw(effects));
  COORDD_RETURN_IF_ERROR(coordd_->CheckConsistency());
  COORDD_RETURN_IF_ERROR(Store(effects));
  for (const Outgoing& out : effects.outgoing) {
    const auto* close = std::get_if<CloseSession>(&out);
    if (close != nullptr &&
        ranks_[static_cast<size_t>(rank_of_.at(close->session))].session == close->session)
      return Wrong("a session is closed: ", close->status.ToString());
    const auto* deliver = std::get_if<coordd::Deliver>(&out);
    if (deliver == nullptr) continue;
    if (deliver->message->has_schedule()) ++schedules_;
    if (deliver->message->has_cut()) ++cuts_;
    for (SessionId session : deliver->to) {
      RankState& to = ranks_[static_cast<size_t>(rank_of_.at(session))];
      if (to.session == session) Deliver(to, *deliver->message);
    }
  }
  return absl::OkStatus();
}

void ScheduleSim::Deliver(RankState& to, v1::CoordinatorMessage message) {
  const bool missed = to.worker != nullptr && !to.worker->attached() && message.position() > 0;
  if (missed && bug_ == PlantedBug::kMissedNotTold) return;
  missed_ += missed ? 1 : 0;
  message.set_sequence(++to.sequence);
  if (bug_ == PlantedBug::kCutTooEarly && message.has_cut() && message.cut().position() > 0)
    message.mutable_cut()->set_position(message.cut().position() - 1);
  to.from_coordd.push_back(std::move(message));
}

absl::Status ScheduleSim::ToWorker(int32_t rank) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  if (state.from_coordd.empty()) return EndStream(rank);
  const bool is_back = state.worker != nullptr && state.worker->attached() && !state.ends;
  if (is_back && !state.lost.empty() && random_.Below(4) == 0) return StrayMessage(rank);
  v1::CoordinatorMessage message = std::move(state.from_coordd.front());
  if (state.worker == nullptr) {
    state.from_coordd.pop_front();
    if (!message.has_membership()) return absl::OkStatus();
    COORDD_ASSIGN_OR_RETURN(MemberPlace place, ParseMembership(message));
    place.state.join = JoinFor(rank);
    place.state.seed = random_.Next();
    state.worker = std::make_unique<WorkerState>(place.state, now_);
    return absl::OkStatus();
  }
  if (message.has_abort()) return Wrong("the generation ended: ", message.abort().reason());
  if (bug_ == PlantedBug::kLaunchesWhenFrozen && message.has_freeze() && rank == 0 &&
      state.from_coordd.size() == 1 && state.frozen_by_bug != message.freeze().id()) {
    // Answers at once, and keeps the message for later.
    state.frozen_by_bug = message.freeze().id();
    v1::WorkerMessage reply;
    reply.set_epoch(message.epoch());
    reply.set_generation(message.generation());
    reply.mutable_freeze_reply()->set_id(message.freeze().id());
    int64_t launched = 0;
    for (const auto& [lane, batches] : state.launched)
      if (ToInt(lane) == kFirstScheduleLane + message.freeze().id() - 1)
        for (const auto& [sequence, tensors] : batches) launched = std::max(launched, sequence);
    reply.mutable_freeze_reply()->set_launched(launched);
    state.to_coordd.push_back(std::move(reply));
    return absl::OkStatus();
  }
  // Held back until the cut is behind it.
  if (state.frozen_by_bug.has_value() && message.has_freeze() && state.from_coordd.size() == 1)
    return absl::OkStatus();
  state.from_coordd.pop_front();
  return Turn(rank, CoordinatorSaid{std::move(message), state.stream});
}

absl::Status ScheduleSim::Turn(int32_t rank, WorkerEvent event) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  std::vector<WorkerEffect> out;
  state.worker->Step(std::move(event), now_, out);
  if (random_.Below(2) == 0) TickWorker(state, out);
  COORDD_RETURN_IF_ERROR(Take(rank, std::move(out)));
  return state.worker->status();
}

// As Control does it; the program waits if that is the next thing that it does.
void ScheduleSim::TickWorker(RankState& state, std::vector<WorkerEffect>& out) {
  state.worker->Tick(now_, out);
  if (!state.worker->question().empty() && Blocked(state))
    state.worker->Step(ProgramWaits{state.worker->question().front()}, now_, out);
}

absl::Status ScheduleSim::Take(int32_t rank, std::vector<WorkerEffect> effects) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  for (WorkerEffect& effect : effects) {
    if (auto* send = std::get_if<SendMessage>(&effect)) {
      const bool twice = state.frozen_by_bug.has_value() && send->message.has_freeze_reply();
      const bool forgotten = bug_ == PlantedBug::kUnansweredNotReported && crashes_ > 0 &&
                             rank == 0 && send->message.has_tensors_ready() &&
                             random_.Below(9) == 0;
      if (!twice && !forgotten && ToInt(state.session) != 0)
        state.to_coordd.push_back(std::move(send->message));
    } else if (const auto* open = std::get_if<coordd::OpenStream>(&effect)) {
      OpenStream(rank, open->stream);
    } else if (const auto* launch = std::get_if<LaunchBatch>(&effect)) {
      while_away_ += state.worker->attached() ? 0 : 1;
      COORDD_RETURN_IF_ERROR(OnLaunch(rank, *launch));
    } else if (const auto* fail = std::get_if<FailTensor>(&effect)) {
      return Wrong("rank ", rank, ": ", fail->status.ToString());
    } else if (const auto* set = std::get_if<DefineProcessSet>(&effect)) {
      sets_[set->process_set] = set->ranks;
    } else if (const auto* answer = std::get_if<ProcessSetAnswer>(&effect)) {
      if (!answer->status.ok()) return Wrong("rank ", rank, ": ", answer->status.ToString());
      --state.asked;
    }
  }
  return absl::OkStatus();
}

std::vector<int32_t> ScheduleSim::Members(ProcessSetId set) const { return sets_.at(set); }

absl::Status ScheduleSim::OnLaunch(int32_t rank, const LaunchBatch& launch) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  const bool scheduled = ToInt(launch.lane) >= kFirstScheduleLane;
  ++(scheduled ? scheduled_batches_ : negotiated_batches_);
  const std::string where =
      absl::StrCat("rank ", rank, ", lane ", ToInt(launch.lane), ", batch ", launch.sequence);
  auto& lane = state.launched[launch.lane];
  if (!lane.empty() && lane.rbegin()->first + 1 != launch.sequence)
    return Wrong(where, ": launched behind ", lane.rbegin()->first);
  Batch& batch = batches_[{launch.lane, launch.sequence}];
  batch.set = launch.process_set;
  std::vector<std::string> tensors;
  auto absent = launch.absent.begin();
  for (TensorId id : launch.tensors) {
    if (ToInt(id) == 0) {
      tensors.push_back(Key(*absent++));
      continue;
    }
    const auto open = state.open.find(id);
    if (open == state.open.end()) return Wrong(where, ": a tensor that has ended");
    tensors.push_back(open->second.name);
    longest_wait_ = std::max(longest_wait_, now_ - open->second.at);
    const auto [known, first] = batch.instances.emplace(open->second.name, open->second.instance);
    if (!first && known->second != open->second.instance) {
      return Wrong(where, ": ", open->second.name, " number ", open->second.instance,
                   " meets another rank's number ", known->second);
    }
  }
  if (batch.launched.empty()) {
    batch.tensors = tensors;
  } else if (batch.tensors != tensors) {
    return Wrong(where, " has [", absl::StrJoin(tensors, " "), "], another rank has [",
                 absl::StrJoin(batch.tensors, " "), "]");
  }
  batch.launched.insert(rank);
  lane[launch.sequence] = launch.tensors;
  return absl::OkStatus();
}

// A batch that all have launched ends on one rank after the other.
absl::Status ScheduleSim::FinishBatch() {
  std::vector<std::pair<LaneId, int64_t>> ready;
  for (const auto& [key, batch] : batches_)
    if (batch.launched.size() == Members(batch.set).size()) ready.push_back(key);
  if (ready.empty()) return absl::OkStatus();
  const auto key = ready[random_.Below(ready.size())];
  Batch& batch = batches_.at(key);
  std::vector<int32_t> left;
  for (int32_t rank : batch.launched)
    if (!batch.done.contains(rank)) left.push_back(rank);
  const int32_t rank = left[random_.Below(left.size())];
  RankState& state = ranks_[static_cast<size_t>(rank)];
  batch.done.insert(rank);
  for (TensorId id : state.launched[key.first][key.second]) {
    if (ToInt(id) != 0) state.open.erase(id);
  }
  if (left.size() == 1) batches_.erase(key);
  return Turn(rank, BatchDone{key.first, key.second, absl::OkStatus(), std::nullopt});
}

}  // namespace coordd
