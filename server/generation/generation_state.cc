#include "server/generation/generation_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"

namespace coordd {
namespace {

// What is left of a spec that could not be decoded: enough to fail its tensor and its group.
TensorSpec NamesOnly(const v1::TensorSpec& proto) {
  TensorSpec spec;
  spec.name = proto.name();
  if (proto.group_size() >= 1 && proto.group_size() <= kMaxGroupSize) {
    spec.group = proto.group();
    spec.group_size = proto.group_size();
  }
  return spec;
}

// Whether decoding `proto` would give just `spec`, which has been found valid.
bool Means(const v1::TensorSpec& proto, const TensorSpec& spec) {
  auto factor = [](double on_the_wire) { return on_the_wire == 0 ? 1.0 : on_the_wire; };
  return proto.name() == spec.name && proto.kind() == static_cast<int>(spec.kind) &&
         proto.dtype() == static_cast<int>(spec.dtype) && proto.op() == static_cast<int>(spec.op) &&
         std::equal(proto.shape().begin(), proto.shape().end(), spec.shape.begin(),
                    spec.shape.end()) &&
         proto.root_rank() == spec.root_rank &&
         factor(proto.prescale_factor()) == spec.prescale_factor &&
         factor(proto.postscale_factor()) == spec.postscale_factor &&
         proto.process_set() == ToInt(spec.process_set) && proto.group() == spec.group &&
         proto.group_size() == spec.group_size && proto.memory() == static_cast<int>(spec.memory) &&
         proto.peer_rank() == spec.peer_rank;
}

absl::Status WithRank(const absl::Status& status, Rank rank) {
  return absl::Status(status.code(), absl::StrCat(status.message(), " (rank ", ToInt(rank), ")"));
}

// What all ranks hear when the process of one has refused the call that they have made.
absl::Status RefusedCall(const TensorSpec& spec, Rank rank) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", spec.name, ": rank ", ToInt(rank),
                                                 " refused its own call of it: ", spec.refused));
}

}  // namespace

GenerationState::GenerationState(Identity identity, const ServerOptions& options,
                                 std::vector<SessionId> by_rank)
    : messages_(std::move(identity), std::move(by_rank)),
      sets_(messages_.by_rank(),
            {.set = {.bounds = {.max_pending = options.max_pending_tensors_per_job,
                                .max_state_bytes = options.max_pending_bytes_per_job},
                     .schedule_steps = options.schedule_after_steps,
                     .slots = messages_.identity().slots},
             .stall_warning = options.stall_warning,
             .stall_abort = options.stall_abort,
             .budget = messages_.identity().budget}),
      requests_(sets_.all(), messages_.identity().budget),
      schedules_(/*wanted=*/options.schedule_after_steps > 0, messages_, sets_),
      plans_(options.max_batch_bytes, messages_, sets_, schedules_),
      comms_(sets_.sets()),
      devices_(sets_.sets()),
      stalls_({options.stall_warning, options.stall_abort}, messages_,
              {sets_, requests_, schedules_, comms_, devices_}),
      groups_(messages_.by_rank(), sets_.all()) {}

absl::Status GenerationState::OnTensorsReady(Rank rank, const v1::TensorsReady& ready,
                                             const Turn& turn) {
  if (ended_) return absl::OkStatus();
  std::vector<FailedTensor> failed;
  absl::Status status;
  for (const v1::CachedTensors& cached : ready.cached())
    if (status.ok()) status = OnCached(rank, cached, turn.now, failed);
  plans_.CountBySpec(ready.tensors_size());
  for (const v1::TensorSpec& proto : ready.tensors()) {
    if (proto.kind() == v1::COLLECTIVE_KIND_JOIN) {
      OnJoin(rank, proto, turn, failed);
    } else {
      OnTensor(rank, proto, turn.now, failed);
    }
  }
  Conclude(failed, turn.effects);
  return status;
}

void GenerationState::Conclude(const std::vector<FailedTensor>& failed, Effects& effects) {
  messages_.DeliverFailures(failed, effects);
  sets_.Settle();
  stalls_.NoteEnded(effects);
}

absl::Status GenerationState::OnCached(Rank rank, const v1::CachedTensors& cached, absl::Time now,
                                       std::vector<FailedTensor>& failed) {
  SetNegotiation* const set = sets_.Find(ProcessSetId{cached.process_set()});
  // It has ended while this was under way, and the rank gives up what it had submitted in it.
  if (set == nullptr) return absl::OkStatus();
  auto wrong = [&](absl::string_view what, int64_t slot) {
    return absl::InvalidArgumentError(absl::StrCat(what, " slot ", slot, " of process set ",
                                                   ToInt(set->id()), ", of which ",
                                                   set->slots_given(), " were given"));
  };
  if (!set->Heard(rank, cached.known())) return wrong("cannot know", cached.known());
  sets_.Touch(*set);
  // Usually nothing stands in the way of counting.
  const bool may_count = schedules_.empty() && sets_.join().joined().empty();
  if (may_count) {
    if (const auto alike = set->CountAlike(cached, rank, now)) {
      plans_.CountBySlot(*alike);
      sets_.join().Heard(now);
      return absl::OkStatus();
    }
  }
  const SetNegotiation::Counted counted = set->Count(
      cached, rank, may_count, now,
      [&](ReadinessTable::Known& known) { OnKnown(*set, rank, known, now, failed); }, failed);
  plans_.CountBySlot(counted.tensors);
  if (counted.tensors > 0) sets_.join().Heard(now);
  return counted.unknown == 0 ? absl::OkStatus() : wrong("reports", counted.unknown);
}

void GenerationState::OnKnown(SetNegotiation& set, Rank rank, ReadinessTable::Known& known,
                              absl::Time now, std::vector<FailedTensor>& failed) {
  plans_.CountBySlot(1);
  if (schedules_.Supersedes(set.id(), rank, known.spec.name)) return;
  if (const absl::Status status = CheckHasData(rank, known.spec.name); status.ok()) {
    set.table().ReportKnown(rank, known, now, failed);
    sets_.join().Heard(now);
  } else {
    set.table().Reject(rank, known.spec, WithRank(status, rank), failed);
  }
}

void GenerationState::OnTensor(Rank rank, const v1::TensorSpec& proto, absl::Time now,
                               std::vector<FailedTensor>& failed) {
  const absl::StatusOr<SetNegotiation*> set = sets_.Of(rank, proto);
  if (!set.ok()) {
    // No set to fail it in: only the one who submitted it hears.
    failed.push_back({ProcessSetId{proto.process_set()},
                      proto.name(),
                      {WithRank(set.status(), rank), rank},
                      {rank}});
    return;
  }
  if (schedules_.Supersedes((*set)->id(), rank, proto.name())) return;
  ReadinessTable& table = (*set)->table();
  JoinState& join = sets_.join();
  auto same = [&proto](const TensorSpec& spec) { return Means(proto, spec); };
  const bool refused = !proto.refused().empty();
  if (!join.Contains(rank) && !refused && table.ReportSame(rank, proto.name(), same, now, failed)) {
    join.Heard(now);
  } else if (const absl::StatusOr<TensorSpec> spec = Decode(rank, proto, table.members());
             spec.ok()) {
    refused ? table.Reject(rank, *spec, RefusedCall(*spec, rank), failed)
            : table.Report(rank, *spec, now, failed);
    join.Heard(now);
  } else {
    table.Reject(rank, NamesOnly(proto), WithRank(spec.status(), rank), failed);
  }
  sets_.Touch(**set);
}

absl::StatusOr<TensorSpec> GenerationState::Decode(Rank rank, const v1::TensorSpec& proto,
                                                   const MemberList& members) const {
  COORDD_ASSIGN_OR_RETURN(TensorSpec spec, FromProto(proto));
  COORDD_RETURN_IF_ERROR(Validate(spec, size()));
  if (HasRoot(spec.kind) && !members.Contains(Rank{spec.root_rank})) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", spec.name, ": root rank ", spec.root_rank, " is not in process set ",
        ToInt(spec.process_set), " of ranks ", ListString(members.Ranks())));
  }
  COORDD_RETURN_IF_ERROR(CheckHasData(rank, spec.name));
  return spec;
}

absl::Status GenerationState::CheckHasData(Rank rank, absl::string_view name) const {
  if (!sets_.join().Contains(rank)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("tensor ", name, ": rank ", ToInt(rank),
                   " submitted it, but has joined: it can submit nothing until all have joined"));
}

bool GenerationState::OnSharedReady(const RankGroup& group, const v1::TensorsReady& ready,
                                    const Turn& turn) {
  // Several sets: what is wrong with the second one would be found when the first has been counted.
  if (ended_ || !ready.tensors().empty() || ready.cached_size() != 1) return false;
  const v1::CachedTensors& cached = ready.cached(0);
  if (cached.process_set() != 0 || !joined().empty() || !schedules_.empty()) return false;
  SetNegotiation& set = sets_.OfAllRanks();
  if (!set.HaveHeard(group.reporters.ranks, cached.known())) return false;
  std::vector<FailedTensor> failed;
  std::optional<int64_t> counted = set.CountAlike(cached, group.reporters, turn.now);
  if (!counted.has_value()) counted = set.CountShared(cached, group.reporters, turn.now, failed);
  if (!counted.has_value()) return false;
  plans_.CountBySlot(*counted);
  sets_.join().Heard(turn.now);
  sets_.Touch(set);
  Conclude(failed, turn.effects);
  return true;
}

// A schedule takes reports out of the count; for whoever has joined nobody waits.
MembersReports GenerationState::WhoHasReported() const {
  const ReadinessTable& table = sets_.OfAllRanks().table();
  return {
      .generation = identity().generation,
      .members = &messages_.by_rank(),
      .all_are_asked = !ended_ && schedules_.empty() && !schedules_.defers() && joined().empty(),
      .none_is_pending = table.pending() == 0 && !table.has_ready()};
}

void GenerationState::OnTensorsWithdrawn(Rank rank, const v1::TensorsWithdrawn& withdrawn,
                                         const Turn& turn) {
  if (ended_) return;
  const ProcessSetId id{withdrawn.process_set()};
  const std::vector<SetNegotiation*> sets = sets_.MaybeOf(rank, id);
  if (sets.empty()) return;
  std::vector<FailedTensor> failed;
  for (const std::string& name : withdrawn.names()) {
    const bool is_join = id == ProcessSetId{0} && name == kJoinName;
    if (is_join && WithdrawJoin(rank, withdrawn.reason(), turn, failed)) continue;
    for (SetNegotiation* set : sets) set->table().Withdraw(rank, name, withdrawn.reason(), failed);
  }
  for (SetNegotiation* set : sets) sets_.Touch(*set);
  Conclude(failed, turn.effects);
}

absl::Status GenerationState::OnScheduleAck(Rank rank, const v1::ScheduleAck& ack) {
  return ended_ ? absl::OkStatus() : schedules_.OnAck(rank, ack);
}

absl::Status GenerationState::OnScheduleBreak(Rank rank, const v1::ScheduleBreak& message,
                                              Effects& effects) {
  return ended_ ? absl::OkStatus() : schedules_.OnBreak(rank, message, effects);
}

absl::Status GenerationState::OnFreezeReply(Rank rank, const v1::FreezeReply& reply,
                                            const Turn& turn) {
  if (ended_) return absl::OkStatus();
  COORDD_ASSIGN_OR_RETURN(const bool cut, schedules_.OnFreezeReply(rank, reply, turn.effects));
  if (cut) AnswerDue(turn);
  return absl::OkStatus();
}

absl::Status GenerationState::OnScheduleFinished(Rank rank, const v1::ScheduleFinished& finished) {
  return ended_ ? absl::OkStatus() : schedules_.OnFinished(rank, finished);
}

void GenerationState::OnHeartbeat(Rank rank, const v1::Heartbeat& heartbeat, const Turn& turn,
                                  absl::string_view place) {
  if (ended_) return;
  devices_.Note(rank, heartbeat, place, turn.now);
  comms_.Note(rank, heartbeat.comm_waits(), turn.now);
  if (!schedules_.empty()) schedules_.OnHeartbeat(rank, heartbeat, turn.now);
  stalls_.NoteEnded(turn.effects);
}

std::optional<std::string> GenerationState::Hopeless(absl::Time now) const {
  return ended_ ? std::nullopt : stalls_.Hopeless(now);
}

void GenerationState::PlanReady(const Turn& turn) {
  plans_.PlanReady(turn);
  stalls_.NoteEnded(turn.effects);
}

void GenerationState::Tick(const Turn& turn) {
  if (ended_) return;
  PlanReady(turn);
  stalls_.Tick(turn);
}

absl::Time GenerationState::NextDeadline() const {
  if (ended_) return absl::InfiniteFuture();
  return sets_.has_ready() ? absl::InfinitePast() : stalls_.NextDeadline();
}

void GenerationState::Forgive(absl::Duration gap) {
  sets_.Forgive(gap);
  requests_.Forgive(gap);
  schedules_.Forgive(gap);
  comms_.Forgive(gap);
  devices_.Forgive(gap);
}

void GenerationState::End(Effects& effects) {
  if (ended_) return;
  ended_ = true;
  sets_.Abandon();
  schedules_.End();
  comms_.ForgetAll();
  devices_.ForgetAll();
  stalls_.NoteEnded(effects);
}

absl::Status GenerationState::CheckConsistency() const {
  COORDD_RETURN_IF_ERROR(requests_.CheckConsistency());
  COORDD_RETURN_IF_ERROR(schedules_.CheckConsistency());
  return sets_.CheckConsistency();
}

}  // namespace coordd
