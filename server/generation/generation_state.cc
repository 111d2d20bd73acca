#include "server/generation/generation_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
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

bool IsPairwise(const v1::TensorSpec& proto) {
  return proto.kind() == v1::COLLECTIVE_KIND_SEND || proto.kind() == v1::COLLECTIVE_KIND_RECEIVE;
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
    : identity_(std::move(identity)),
      options_(options),
      by_rank_(std::move(by_rank)),
      bounds_{.max_pending = options.max_pending_tensors_per_job},
      sets_(size()),
      requests_(sets_.all()),
      join_(sets_.all()),
      device_order_(sets_.all()),
      totals_(size()) {
  AddSet(ProcessSetId{0}, ProcessSetId{0}, sets_.all());
}

GenerationState::SetState& GenerationState::AddSet(ProcessSetId id, ProcessSetId named,
                                                   const MemberList& members) {
  auto set = std::make_unique<SetState>(id, named, members, bounds_, options_.schedule_after_steps,
                                        id == named ? identity_.slots : 0, totals_);
  for (Rank rank : members.Ranks()) set->sessions.push_back(session_of(rank));
  std::vector<FailedTensor> none;
  for (Rank rank : join_.joined().Ranks()) {
    if (members.Contains(rank)) set->table.Join(rank, none);
  }
  COORDD_CHECK(none.empty());
  return *(states_[id] = std::move(set));
}

absl::Status GenerationState::OnTensorsReady(Rank rank, const v1::TensorsReady& ready,
                                             const Turn& turn) {
  if (ended_) return absl::OkStatus();
  std::vector<FailedTensor> failed;
  absl::Status status;
  for (const v1::CachedTensors& cached : ready.cached())
    if (status.ok()) status = OnCached(rank, cached, turn.now, failed);
  reported_by_spec_ += ready.tensors_size();
  for (const v1::TensorSpec& proto : ready.tensors()) {
    if (proto.kind() == v1::COLLECTIVE_KIND_JOIN) {
      OnJoin(rank, proto, turn, failed);
    } else {
      OnTensor(rank, proto, turn, failed);
    }
  }
  DeliverFailures(failed, turn.effects);
  TouchTouched();
  NoteStallsEnded(turn.effects);
  return status;
}

absl::Status GenerationState::OnCached(Rank rank, const v1::CachedTensors& cached, absl::Time now,
                                       std::vector<FailedTensor>& failed) {
  const auto it = states_.find(ProcessSetId{cached.process_set()});
  // It has ended while this was under way, and the rank gives up what it had submitted in it.
  if (it == states_.end()) return absl::OkStatus();
  SetState& set = *it->second;
  const int32_t member = set.table.members().IndexOf(rank);
  auto wrong = [&](absl::string_view what, int64_t slot) {
    return absl::InvalidArgumentError(absl::StrCat(what, " slot ", slot, " of process set ",
                                                   ToInt(set.id), ", of which ", set.slots.given(),
                                                   " were given"));
  };
  if (member < 0 || !set.slots.Heard(member, cached.known()))
    return wrong("cannot know", cached.known());
  touched_.push_back(&set);
  // Usually nothing stands in the way of counting: then the rank's lag is reckoned for all tensors
  // with the same delay at once.
  const bool counts = schedules_.empty() && join_.joined().empty();
  if (counts && CountAlike(set, cached, rank, now)) return absl::OkStatus();
  absl::Duration delay = absl::ZeroDuration();  // of the last `with_delay` tensors
  int64_t with_delay = 0;
  const auto note_lag = [&] {
    set.table.NoteLag(absl::MakeConstSpan(&rank, 1), delay, std::exchange(with_delay, 0));
  };
  int64_t unknown = 0;
  const bool all = ForEachSlot(cached.first_slot(), cached.bits(), [&](int64_t slot) {
    ReadinessTable::Known* known = set.slots.Find(slot);
    if (known == nullptr) {
      unknown = slot;
      return false;
    }
    const absl::Duration its =
        known->pending != nullptr ? ReadinessTable::DelayOf(*known, now) : absl::ZeroDuration();
    if (counts && set.table.ReportPending(rank, *known, failed)) {
      if (its != delay) note_lag();
      delay = its;
      ++with_delay;
      ++reported_by_slot_;
      join_.Heard(now);
    } else {
      note_lag();
      OnKnown(set, rank, *known, now, failed);
    }
    return true;
  });
  note_lag();
  return all ? absl::OkStatus() : wrong("reports", unknown);
}

void GenerationState::OnKnown(SetState& set, Rank rank, ReadinessTable::Known& known,
                              absl::Time now, std::vector<FailedTensor>& failed) {
  ++reported_by_slot_;
  if (schedules_.Supersedes(set.id, rank, known.spec.name)) return;
  if (const absl::Status status = CheckHasData(rank, known.spec.name); status.ok()) {
    set.table.ReportKnown(rank, known, now, failed);
    join_.Heard(now);
  } else {
    set.table.Reject(rank, known.spec, WithRank(status, rank), failed);
  }
}

void GenerationState::OnTensor(Rank rank, const v1::TensorSpec& proto, const Turn& turn,
                               std::vector<FailedTensor>& failed) {
  const absl::StatusOr<SetState*> set = SetOf(rank, proto);
  if (!set.ok()) {
    // No set to fail it in: only the one who submitted it hears.
    failed.push_back({ProcessSetId{proto.process_set()},
                      proto.name(),
                      {WithRank(set.status(), rank), rank},
                      {rank}});
    return;
  }
  if (schedules_.Supersedes((*set)->id, rank, proto.name())) return;
  ReadinessTable& table = (*set)->table;
  auto same = [&proto](const TensorSpec& spec) { return Means(proto, spec); };
  const bool refused = !proto.refused().empty();
  if (!join_.Contains(rank) && !refused &&
      table.ReportSame(rank, proto.name(), same, turn.now, failed)) {
    join_.Heard(turn.now);
  } else if (const absl::StatusOr<TensorSpec> spec = Decode(rank, proto, table.members());
             spec.ok()) {
    refused ? table.Reject(rank, *spec, RefusedCall(*spec, rank), failed)
            : table.Report(rank, *spec, turn.now, failed);
    join_.Heard(turn.now);
  } else {
    table.Reject(rank, NamesOnly(proto), WithRank(spec.status(), rank), failed);
  }
  if (touched_.empty() || touched_.back() != *set) touched_.push_back(*set);
}

// The set in which the tensor is negotiated.
absl::StatusOr<GenerationState::SetState*> GenerationState::SetOf(Rank rank,
                                                                  const v1::TensorSpec& proto) {
  const absl::StatusOr<SetState*> set =
      IsPairwise(proto) ? PairOf(rank, proto) : NamedSetOf(rank, ProcessSetId{proto.process_set()});
  if (set.ok()) return set;
  return absl::Status(set.status().code(),
                      absl::StrCat("tensor ", proto.name(), ": ", set.status().message()));
}

absl::StatusOr<GenerationState::SetState*> GenerationState::PairOf(Rank rank,
                                                                   const v1::TensorSpec& proto) {
  const Rank peer{proto.peer_rank()};
  const absl::string_view kind = Name(static_cast<CollectiveKind>(proto.kind()));
  if (!sets_.all().Contains(peer) || peer == rank) {
    return absl::InvalidArgumentError(absl::StrCat(kind, " with peer rank ", ToInt(peer),
                                                   ", expected another one of the ",
                                                   sets_.all().size(), " ranks"));
  }
  if (proto.process_set() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(kind, " in process set ", proto.process_set(),
                                                   ", expected 0: the two are a set of their own"));
  }
  COORDD_ASSIGN_OR_RETURN(const ProcessSetId id, sets_.PairOf(rank, peer));
  const auto it = states_.find(id);
  if (it != states_.end()) return it->second.get();
  SetState& pair = AddSet(id, /*named=*/ProcessSetId{0}, *sets_.Find(id));
  pair.is_pair = true;
  return &pair;
}

absl::StatusOr<GenerationState::SetState*> GenerationState::NamedSetOf(Rank rank, ProcessSetId id) {
  const auto it = states_.find(id);
  if (it == states_.end()) return sets_.NoSuchSet(id);
  SetState& set = *it->second;
  if (set.is_pair) {
    return absl::InvalidArgumentError(absl::StrCat(
        "process set ", ToInt(id), " is a pair that coordd made for send and receive"));
  }
  if (!set.table.members().Contains(rank)) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", ToInt(rank), " is not in process set ",
                                                   ToInt(id), " of ranks ",
                                                   ListString(set.table.members().Ranks())));
  }
  return &set;
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
  if (!join_.Contains(rank)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("tensor ", name, ": rank ", ToInt(rank),
                   " submitted it, but has joined: it can submit nothing until all have joined"));
}

void GenerationState::OnTensorsWithdrawn(Rank rank, const v1::TensorsWithdrawn& withdrawn,
                                         const Turn& turn) {
  if (ended_) return;
  std::vector<FailedTensor> failed;
  const auto it = states_.find(ProcessSetId{withdrawn.process_set()});
  if (it == states_.end() || !it->second->table.members().Contains(rank)) return;
  const bool in_all = it->second->id == ProcessSetId{0};
  // Sends and receives are submitted in set 0 too.
  std::vector<SetState*> among = {it->second.get()};
  if (in_all) {
    for (ProcessSetId pair : sets_.PairsOf(rank)) among.push_back(states_.at(pair).get());
  }
  for (const std::string& name : withdrawn.names()) {
    if (in_all && name == kJoinName && WithdrawDeferredJoin(rank, withdrawn.reason(), failed))
      continue;
    if (in_all && name == kJoinName && join_.Contains(rank)) {
      PlanBeforeJoinEnds(turn, failed);
      join_.Withdraw(rank, withdrawn.reason(), failed);
      EndJoin();
      continue;
    }
    for (SetState* set : among) set->table.Withdraw(rank, name, withdrawn.reason(), failed);
  }
  touched_.insert(touched_.end(), among.begin(), among.end());
  DeliverFailures(failed, turn.effects);
  TouchTouched();
  NoteStallsEnded(turn.effects);
}

void GenerationState::Tick(const Turn& turn) {
  if (ended_) return;
  Plan(turn);
  WatchStalls(turn);
}

void GenerationState::End(Effects& effects) {
  if (ended_) return;
  ended_ = true;
  for (const auto& [id, set] : states_) set->table.ForgetAll();
  schedules_.Clear();
  deferred_.clear();
  ready_.clear();
  deadlines_.clear();
  NoteStallsEnded(effects);
}

// Keeps ready_ and deadlines_ true to the set.
void GenerationState::Touch(SetState& set) {
  if (set.table.has_ready()) {
    ready_.insert(set.id);
  } else {
    ready_.erase(set.id);
  }
  const absl::Time next = set.table.NextStall(options_.stall_warning, options_.stall_abort);
  if (next == set.deadline) return;
  deadlines_.erase({set.deadline, set.id});
  set.deadline = next;
  if (next != absl::InfiniteFuture()) deadlines_.insert({next, set.id});
}

void GenerationState::TouchTouched() {
  for (SetState* set : touched_) Touch(*set);
  touched_.clear();
}

}  // namespace coordd
