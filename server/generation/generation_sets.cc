// Process sets and joins of a generation: what becomes of requests, and who has no more data.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "server/generation/generation_state.h"
#include "server/model/validate_message.h"

namespace coordd {

absl::Status GenerationState::OnProcessSetRequest(Rank rank, const v1::ProcessSetRequest& request,
                                                  const Turn& turn) {
  if (ended_) return absl::OkStatus();
  std::vector<FailedRequest> failed;
  if (request.withdrawn()) {
    COORDD_RETURN_IF_ERROR(requests_.Withdraw(rank, request.request(), failed));
    DeliverRefusals(failed, turn.effects);
    return absl::OkStatus();
  }
  ProcessSetProposal proposal{.remove = ProcessSetId{request.remove()}, .ranks = {}};
  for (int32_t member : request.ranks()) proposal.ranks.push_back(Rank{member});
  std::optional<AgreedRequest> agreed;
  COORDD_RETURN_IF_ERROR(requests_.Request(rank, request.request(), proposal, join_.joined(),
                                           turn.now, agreed, failed));
  join_.Heard(turn.now);
  DeliverRefusals(failed, turn.effects);
  if (!agreed.has_value()) return absl::OkStatus();
  if (!Defer({Rank{}, agreed}, turn.effects)) Answer(*agreed, turn);
  return absl::OkStatus();
}

std::vector<Rank> GenerationState::RanksBut(const std::vector<Rank>& told) const {
  std::vector<Rank> ranks = sets_.all().Ranks();
  std::erase_if(ranks, [&told](Rank rank) {
    return std::find(told.begin(), told.end(), rank) != told.end();
  });
  return ranks;
}

void GenerationState::Answer(const AgreedRequest& agreed, const Turn& turn) {
  const absl::StatusOr<ProcessSetId> set = Apply(agreed.proposal, turn);
  if (!set.ok()) {
    const absl::Status why(set.status().code(),
                           absl::StrCat("process set request ", agreed.number, " to ",
                                        ToString(agreed.proposal), ": ", set.status().message()));
    DeliverRefusals({{agreed.number, {why, kNobody}, RanksBut(agreed.told)}}, turn.effects);
    return;
  }
  v1::ProcessSetChange change;
  change.set_request(agreed.number);
  change.set_process_set(ToInt(*set));
  for (Rank member : agreed.proposal.ranks) change.add_ranks(ToInt(member));
  // Also those who have heard it before: it is over for everybody now (Resumed.open_ends).
  std::vector<SessionId> to;
  for (Rank rank : sets_.all().Ranks()) to.push_back(session_of(rank));
  DeliverChange(change, std::move(to), turn.effects);
  const bool added = agreed.proposal.remove == ProcessSetId{0};
  Emit(Event::Kind::kProcessSetChanged,
       added ? absl::StrCat("process set ", ToInt(*set), " of ranks ",
                            ListString(agreed.proposal.ranks), " added")
             : absl::StrCat("process set ", ToInt(*set), " removed"),
       0, absl::StatusCode::kOk, turn.effects);
}

absl::StatusOr<ProcessSetId> GenerationState::Apply(const ProcessSetProposal& proposal,
                                                    const Turn& turn) {
  const ProcessSetId ends = proposal.remove;
  if (ends == ProcessSetId{0}) {
    COORDD_ASSIGN_OR_RETURN(const ProcessSetId id, sets_.Add(proposal.ranks));
    AddSet(id, id, *sets_.Find(id));
    return id;
  }
  if (!proposal.ranks.empty()) {
    return absl::InvalidArgumentError("a removal that names ranks too, expected none");
  }
  COORDD_RETURN_IF_ERROR(sets_.CheckRemove(ends));
  SetState& set = *states_.at(ends);
  if (const std::optional<PendingTensor> oldest = set.table.Oldest()) {
    return absl::FailedPreconditionError(
        absl::StrCat("process set ", ToInt(ends), " has ", set.table.pending(), " pending tensor",
                     set.table.pending() == 1 ? "" : "s", ", the oldest is ", oldest->name, ": in ",
                     RanksString(oldest->ready, oldest->ready_count), ", missing ",
                     RanksString(oldest->missing, oldest->missing_count)));
  }
  PlanSet(set, turn);  // its last plan precedes its end
  deadlines_.erase({set.deadline, ends});
  schedules_.EndSet(ends);
  states_.erase(ends);
  sets_.Remove(ends);
  return ends;
}

void GenerationState::DeliverRefusals(const std::vector<FailedRequest>& failed, Effects& effects) {
  for (const FailedRequest& failure : failed) {
    v1::ProcessSetChange change;
    change.set_request(failure.number);
    change.set_code(static_cast<int>(failure.fault.status.code()));
    change.set_message(Truncated(failure.fault.status.message(), 4 * kMaxReasonBytes));
    std::vector<SessionId> to;
    for (Rank rank : failure.ranks) to.push_back(session_of(rank));
    DeliverChange(change, std::move(to), effects);
    Emit(Event::Kind::kProcessSetRefused, std::string(failure.fault.status.message()), 0,
         failure.fault.status.code(), effects);
  }
}

void GenerationState::DeliverChange(const v1::ProcessSetChange& change, std::vector<SessionId> to,
                                    Effects& effects) {
  // A refusal changes nothing, and may be owed to others still.
  std::shared_ptr<v1::CoordinatorMessage> message =
      change.code() == 0 ? NewOrdered() : NewMessage();
  *message->mutable_process_set_change() = change;
  effects.outgoing.push_back(Deliver{std::move(to), std::move(message)});
}

void GenerationState::OnJoin(Rank rank, const v1::TensorSpec& proto, const Turn& turn,
                             std::vector<FailedTensor>& failed) {
  if (proto.name() != kJoinName || proto.process_set() != 0 || !proto.group().empty()) {
    const absl::Status why = absl::InvalidArgumentError(
        absl::StrCat("tensor ", proto.name(), " of rank ", ToInt(rank),
                     ": a join has the name join, process set 0 and no group"));
    failed.push_back({ProcessSetId{proto.process_set()}, proto.name(), {why, rank}, {rank}});
    return;
  }
  if (!Defer({rank, std::nullopt}, turn.effects)) Join(rank, turn, failed);
}

void GenerationState::Join(Rank rank, const Turn& turn, std::vector<FailedTensor>& failed) {
  std::vector<FailedTensor> refused;
  switch (join_.Join(rank, turn.now, refused)) {
    case JoinState::Outcome::kRefused:
      failed.insert(failed.end(), refused.begin(), refused.end());
      return;
    case JoinState::Outcome::kFailed:
      PlanBeforeJoinEnds(turn, failed);
      failed = std::move(refused);
      EndJoin();
      return;
    case JoinState::Outcome::kJoined:
    case JoinState::Outcome::kComplete:
      break;
  }
  const bool is_last = join_.joined().empty();
  std::vector<FailedRequest> without_it;
  requests_.Joined(rank, without_it);
  DeliverRefusals(without_it, turn.effects);
  for (const auto& [id, set] : states_) {
    if (!set->table.members().Contains(rank)) continue;
    set->table.Join(rank, failed);
    touched_.push_back(set.get());
  }
  Emit(Event::Kind::kRankJoined,
       is_last ? absl::StrCat("rank ", ToInt(rank), " has joined, the last one")
               : absl::StrCat("rank ", ToInt(rank), " has joined, ", join_.joined().size(), " of ",
                              size(), " have"),
       0, absl::StatusCode::kOk, turn.effects);
  if (!is_last) return;
  PlanBeforeJoinEnds(turn, failed);
  EndJoin();
  PlanJoin(rank, turn.effects);
}

// A rank knows what to do with a batch in which it counts as joined as long as it has not heard of
// the join's end. Failures so far come first: they answer earlier reports.
void GenerationState::PlanBeforeJoinEnds(const Turn& turn, std::vector<FailedTensor>& failed) {
  DeliverFailures(failed, turn.effects);
  failed.clear();
  Plan(turn);
}

void GenerationState::EndJoin() {
  for (const auto& [id, set] : states_) {
    set->table.EndJoin();
    touched_.push_back(set.get());
  }
}

}  // namespace coordd
