#include "tests/sim/schedule_sim.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/protocol/protocol_bounds.h"
#include "tests/server/support/builders.h"
#include "worker/protocol/join_message.h"

namespace coordd {
namespace {

constexpr int64_t kMaxScheduleSteps = 400000;

std::string Key(const TensorSpec& spec) {
  return absl::StrCat(spec.name, "@", ToInt(spec.process_set));
}

// And in every second seed hardly any slots: most are forgotten while they are under way.
ServerOptions ManyBatches(uint64_t seed) {
  ServerOptions options = SimServerOptions();
  if (seed % 2 == 0) options.slots = 2;
  options.max_batch_bytes = 4096;
  return options;
}

}  // namespace

ScheduleSim::ScheduleSim(uint64_t seed, std::vector<SimProgram> programs, PlantedBug bug,
                         SimFaults faults, Log log)
    : bug_(bug),
      faults_(faults),
      random_(seed),
      programs_(std::move(programs)),
      ranks_(programs_.size()),
      coordd_(ManyBatches(seed), ranks_.size(), random_, CoorddHooks(std::move(log))) {}

absl::Status ScheduleSim::Run() {
  const absl::Time start = coordd_.now();
  COORDD_RETURN_IF_ERROR(coordd_.Start());
  for (int32_t rank = 0; rank < static_cast<int32_t>(ranks_.size()); ++rank) {
    sets_[ProcessSetId{0}].push_back(rank);
    coordd_.SendJoin(rank, JoinFor(rank));
  }
  for (int64_t steps = 0; !Finished(); ++steps) {
    if (steps > kMaxScheduleSteps || coordd_.now() - start > kMaxSimTime) {
      std::string waits;
      for (size_t i = 0; i < ranks_.size(); ++i) {
        absl::StrAppend(&waits, " rank ", i, " at ", ranks_[i].next_op, "/", programs_[i].size(),
                        ":");
        for (const auto& [id, open] : ranks_[i].open) absl::StrAppend(&waits, " ", open.name);
      }
      return Wrong("no end after ", steps, " steps and ",
                   absl::FormatDuration(coordd_.now() - start), ":", waits);
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
  const int32_t n = static_cast<int32_t>(ranks_.size());
  if (!coordd_.alive() && random_.Below(20) == 0) return coordd_.Start();
  if (coordd_.alive() && crashes_ < faults_.crashes && random_.Below(150) == 0) {
    ++crashes_;
    coordd_.Crash();
    return absl::OkStatus();
  }
  if (coordd_.alive() && coordd_.is_storing() && random_.Below(3) == 0) return coordd_.StoreOn();
  if (breaks_ < faults_.breaks && !all_are_back() && random_.Below(10) == 0)
    return BreakStream(static_cast<int32_t>(random_.Below(ranks_.size())));
  for (int tries = 0; tries < 12; ++tries) {
    const int32_t rank = static_cast<int32_t>(random_.Below(ranks_.size()));
    RankState& state = ranks_[static_cast<size_t>(rank)];
    switch (random_.Below(4)) {
      case 0:
        if (!coordd_.stream(rank).to_coordd.empty()) return ToCoordd(rank);
        break;
      case 1:
        if (HasNews(rank)) return ToWorker(rank);
        break;
      case 2:
        if (state.worker != nullptr && !Blocked(state)) return RunProgram(rank);
        break;
      default:
        if (!batches_.empty()) return FinishBatch();
    }
  }
  // Nothing was found by chance: look everywhere.
  for (int32_t rank = 0; rank < n; ++rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    if (!coordd_.stream(rank).to_coordd.empty()) return ToCoordd(rank);
    if (HasNews(rank)) return ToWorker(rank);
    if (state.worker != nullptr && !Blocked(state)) return RunProgram(rank);
    if (state.worker != nullptr && state.worker->turn_due()) {
      std::vector<WorkerEffect> out;
      TickWorker(state, out);
      return Take(rank, std::move(out));
    }
  }
  for (const auto& [key, batch] : batches_)
    if (CanEnd(key, batch)) return FinishBatch();
  return PassTime();
}

bool ScheduleSim::HasNews(int32_t rank) {
  return !coordd_.stream(rank).from_coordd.empty() || coordd_.stream(rank).ends;
}

absl::Status ScheduleSim::PassTime() {
  if (!coordd_.alive()) return coordd_.Start();
  if (coordd_.is_storing()) return coordd_.StoreOn();
  absl::Time next = coordd_.state().NextDeadline();
  for (const RankState& state : ranks_)
    if (state.worker != nullptr) next = std::min(next, state.worker->NextDeadline());
  if (next == absl::InfiniteFuture()) return Wrong("nothing will ever happen");
  coordd_.PassUntil(next);
  COORDD_RETURN_IF_ERROR(coordd_.Tick());
  for (int32_t rank = 0; rank < static_cast<int32_t>(ranks_.size()); ++rank) {
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
  const absl::Time deadline = coordd_.now() + absl::Minutes(10);
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
    const int64_t instance = state.joins * kMaxScheduleSteps + ++state.instances[Key(spec)];
    state.open[id] = {Key(spec), instance, coordd_.now(), spec.memory};
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
  auto& sent = coordd_.stream(rank).to_coordd;
  if (bug_ == PlantedBug::kReportNotDropped && sent.size() > 1 && sent[1]->has_schedule_ack() &&
      sent[0]->has_tensors_ready()) {
    std::swap(sent[0], sent[1]);
  }
  if (sent.front()->has_tensors_ready()) ++reports_;
  for (const v1::CachedTensors& cached : sent.front()->tensors_ready().cached()) {
    if (cached.bits().empty()) continue;
    ++by_slot_;
    if (crashes_ > 0) ++by_slot_after_crash_;
  }
  if (bug_ == PlantedBug::kNoBreak && sent.front()->has_schedule_break()) {
    sent.pop_front();
    return absl::OkStatus();
  }
  return coordd_.Read(rank);
}

bool ScheduleSim::OnSaid(int32_t rank, v1::CoordinatorMessage& message, bool current) {
  if (message.has_schedule()) schedules_.insert(message.schedule().id());
  if (message.has_cut()) cuts_.insert(message.cut().id());
  const WorkerState* worker = ranks_[static_cast<size_t>(rank)].worker.get();
  const bool missed = current && worker != nullptr && !worker->attached() && message.position() > 0;
  if (missed && bug_ == PlantedBug::kMissedNotTold) return false;
  missed_ += missed ? 1 : 0;
  if (bug_ == PlantedBug::kCutTooEarly && message.has_cut() && message.cut().position() > 0)
    message.mutable_cut()->set_position(message.cut().position() - 1);
  if (bug_ == PlantedBug::kNotStaged && message.has_plan())
    for (v1::FusedBatch& batch : *message.mutable_plan()->mutable_batches()) batch.clear_staged();
  if (bug_ == PlantedBug::kForgetsSlotsEarly && message.has_membership() && rank == 0)
    message.mutable_membership()->set_slots(message.membership().slots() - 1);
  return true;
}

absl::Status ScheduleSim::ToWorker(int32_t rank) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  SimStream& stream = coordd_.stream(rank);
  if (stream.from_coordd.empty()) return EndStream(rank);
  const bool is_back = state.worker != nullptr && state.worker->attached() && !stream.ends;
  if (is_back && !stream.lost.empty() && random_.Below(4) == 0) return StrayMessage(rank);
  const v1::CoordinatorMessage& next = stream.from_coordd.front();
  if (state.worker != nullptr && next.has_abort())
    return Wrong("the generation ended: ", next.abort().reason());
  const bool may_hold = next.has_freeze() && stream.from_coordd.size() == 1;
  if (bug_ == PlantedBug::kLaunchesWhenFrozen && may_hold && rank == 0 &&
      state.frozen_by_bug != next.freeze().id()) {
    return AnswerAndGoOn(rank, next);
  }
  // Held back until the cut is behind it.
  if (state.frozen_by_bug.has_value() && may_hold) return absl::OkStatus();
  v1::CoordinatorMessage message = std::move(stream.from_coordd.front());
  stream.from_coordd.pop_front();
  if (state.worker != nullptr)
    return Turn(rank, CoordinatorSaid{std::move(message), stream.number});
  if (!message.has_membership()) return absl::OkStatus();
  COORDD_ASSIGN_OR_RETURN(MemberPlace place, ParseMembership(message));
  place.state.join = JoinFor(rank);
  place.state.seed = random_.Next();
  state.worker = std::make_unique<WorkerState>(place.state, coordd_.now());
  return absl::OkStatus();
}

// A planted mistake: it answers at once, and keeps the message for later.
absl::Status ScheduleSim::AnswerAndGoOn(int32_t rank, const v1::CoordinatorMessage& freeze) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  state.frozen_by_bug = freeze.freeze().id();
  v1::WorkerMessage reply;
  reply.set_epoch(freeze.epoch());
  reply.set_generation(freeze.generation());
  reply.mutable_freeze_reply()->set_id(freeze.freeze().id());
  int64_t launched = 0;
  for (const auto& [lane, batches] : state.launched)
    if (ToInt(lane) == kFirstScheduleLane + freeze.freeze().id() - 1)
      for (const auto& [sequence, tensors] : batches) launched = std::max(launched, sequence);
  reply.mutable_freeze_reply()->set_launched(launched);
  coordd_.Send(rank, std::move(reply));
  return absl::OkStatus();
}

absl::Status ScheduleSim::Turn(int32_t rank, WorkerEvent event) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  std::vector<WorkerEffect> out;
  state.worker->Step(std::move(event), coordd_.now(), out);
  if (random_.Below(2) == 0) TickWorker(state, out);
  COORDD_RETURN_IF_ERROR(Take(rank, std::move(out)));
  return state.worker->status();
}

// As Control does it; the program waits if that is the next thing that it does.
void ScheduleSim::TickWorker(RankState& state, std::vector<WorkerEffect>& out) {
  state.worker->Tick(coordd_.now(), out);
  if (!state.worker->question().empty() && Blocked(state))
    state.worker->Step(ProgramWaits{state.worker->question().front()}, coordd_.now(), out);
}

absl::Status ScheduleSim::Take(int32_t rank, std::vector<WorkerEffect> effects) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  for (WorkerEffect& effect : effects) {
    if (auto* send = std::get_if<SendMessage>(&effect)) {
      const bool twice = state.frozen_by_bug.has_value() && send->message.has_freeze_reply();
      const bool forgotten = bug_ == PlantedBug::kUnansweredNotReported && crashes_ > 0 &&
                             rank == 0 && send->message.has_tensors_ready() &&
                             random_.Below(9) == 0;
      if (bug_ == PlantedBug::kMeansAnotherSlot && rank == 0 && send->message.has_tensors_ready()) {
        for (v1::CachedTensors& cached : *send->message.mutable_tensors_ready()->mutable_cached())
          cached.set_first_slot(std::max<int64_t>(1, cached.first_slot() - 1));
      }
      if (bug_ == PlantedBug::kJoinNotTakenBack) LeaveJoin(state, send->message);
      if (!twice && !forgotten) coordd_.Send(rank, std::move(send->message));
    } else if (const auto* open = std::get_if<OpenStream>(&effect)) {
      coordd_.Open(rank, open->stream);
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

// A planted mistake: what is said of it behind the cut is not sent.
void ScheduleSim::LeaveJoin(RankState& state, v1::WorkerMessage& message) {
  if (message.has_freeze_reply() && message.freeze_reply().join_follows()) {
    message.mutable_freeze_reply()->clear_join_follows();
    ++state.joins_left_by_bug;
  }
  if (!message.has_tensors_ready() || state.joins_left_by_bug == 0) return;
  auto& tensors = *message.mutable_tensors_ready()->mutable_tensors();
  const auto join = std::find_if(tensors.begin(), tensors.end(), [](const v1::TensorSpec& spec) {
    return spec.kind() == v1::COLLECTIVE_KIND_JOIN;
  });
  if (join == tensors.end()) return;
  --state.joins_left_by_bug;
  tensors.erase(join);
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
  MemoryKind memory = MemoryKind::kHost;
  for (TensorId id : launch.tensors) {
    if (ToInt(id) == 0) {
      memory = absent->memory;
      tensors.push_back(Key(*absent++));
      continue;
    }
    const auto open = state.open.find(id);
    if (open == state.open.end()) return Wrong(where, ": a tensor that has ended");
    memory = open->second.memory;
    tensors.push_back(open->second.name);
    longest_wait_ = std::max(longest_wait_, coordd_.now() - open->second.at);
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
  const bool by_nccl = memory != MemoryKind::kHost && !launch.staged;
  if (!batch.launched.empty() && by_nccl != batch.by_nccl)
    return Wrong(where, by_nccl ? " is" : " is not", " NCCL's, other than on another rank");
  batch.by_nccl = by_nccl;
  if (by_nccl) state.device.emplace_back(launch.lane, launch.sequence);
  scheduled_by_nccl_ += by_nccl && scheduled ? 1 : 0;
  staged_ += launch.staged ? 1 : 0;
  batch.launched.insert(rank);
  lane[launch.sequence] = launch.tensors;
  return absl::OkStatus();
}

// All have launched it, and on no device does anything stand before it.
bool ScheduleSim::CanEnd(const BatchKey& key, const Batch& batch) const {
  if (batch.launched.size() != Members(batch.set).size()) return false;
  return !batch.by_nccl ||
         std::all_of(batch.launched.begin(), batch.launched.end(), [&](int32_t rank) {
           return batch.done.contains(rank) ||
                  ranks_[static_cast<size_t>(rank)].device.front() == key;
         });
}

// A batch that all have launched ends on one rank after the other.
absl::Status ScheduleSim::FinishBatch() {
  std::vector<BatchKey> ready;
  for (const auto& [key, batch] : batches_)
    if (CanEnd(key, batch)) ready.push_back(key);
  if (ready.empty()) return absl::OkStatus();
  const auto key = ready[random_.Below(ready.size())];
  Batch& batch = batches_.at(key);
  std::vector<int32_t> left;
  for (int32_t rank : batch.launched)
    if (!batch.done.contains(rank)) left.push_back(rank);
  const int32_t rank = left[random_.Below(left.size())];
  RankState& state = ranks_[static_cast<size_t>(rank)];
  batch.done.insert(rank);
  if (batch.by_nccl) state.device.pop_front();
  for (TensorId id : state.launched[key.first][key.second]) {
    if (ToInt(id) != 0) state.open.erase(id);
  }
  if (left.size() == 1) batches_.erase(key);
  return Turn(rank, BatchDone{key.first, key.second, absl::OkStatus(), std::nullopt});
}

}  // namespace coordd
