// Process sets and joins of a generation: what it begins with, what becomes of requests, and who
// has no more data.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "server/generation/generation_state.h"

namespace coordd {
namespace {

// To make a set, with its negotiation, takes as long as so many entries of reports, and a batch
// with its names as so many; ranks are copied.
constexpr int64_t kEntriesOfSet = 16;
constexpr int64_t kEntriesOfBatch = 4;
constexpr int64_t kRanksOfEntry = 8;

}  // namespace

void GenerationState::TakeOver(ProcessSetId id, const std::vector<Rank>& ranks) {
  COORDD_CHECK(sets_.sets().Restore(id, ranks, /*is_pair=*/false).ok());
}

// docs/design/recovery.md, part B.
absl::StatusOr<bool> GenerationState::Restore(ResumedGeneration& resumed, int64_t entries,
                                              absl::Time now) {
  for (size_t& i = resumed.sets_taken; i < resumed.sets.size(); ++i) {
    if (entries <= 0) return false;
    const ResumedGeneration::Set set = std::move(resumed.sets[i]);
    entries -= kEntriesOfSet + static_cast<int64_t>(set.ranks.size()) / kRanksOfEntry;
    COORDD_RETURN_IF_ERROR(RestoreSet(set));
  }
  sets_.sets().SkipNumbersUpTo(resumed.last_process_set);
  for (size_t& i = resumed.schedules_taken; i < resumed.schedules.size(); ++i) {
    if (entries <= 0) return false;
    const ResumedGeneration::Scheduled scheduled = std::move(resumed.schedules[i]);
    entries -= kEntriesOfSet + scheduled.schedule.batches_size() * kEntriesOfBatch;
    COORDD_RETURN_IF_ERROR(schedules_.Restore(scheduled));
  }
  schedules_.EndRestore(resumed.last_schedule);
  std::map<int64_t, ProcessSetId> removals;
  for (const ResumedGeneration::Removal& removal : resumed.removals)
    removals.emplace(removal.request, removal.process_set);
  requests_.Restore(resumed.answered_requests, removals, now);
  messages_.RestorePosition(resumed.position);
  return true;
}

// A set in which nothing was planned has no negotiation yet, as where all have just agreed on it.
absl::Status GenerationState::RestoreSet(const ResumedGeneration::Set& set) {
  if (set.id != ProcessSetId{0}) {
    const absl::Status restored = sets_.sets().Restore(set.id, set.ranks, set.is_pair, set.name);
    if (!restored.ok()) return absl::InternalError(restored.message());
  }
  if (set.is_pair) sets_.Add(set.id, set.is_pair).TakeAnnouncement();  // it has been announced
  if (set.is_pair || set.launched > 0) sets_.At(set.id).RestoreSequence(set.launched);
  return absl::OkStatus();
}

absl::Status GenerationState::OnProcessSetRequest(Rank rank, const v1::ProcessSetRequest& request,
                                                  const Turn& turn) {
  if (ended_) return absl::OkStatus();
  if (!request.name().empty()) return OnNamedSetRequest(rank, request, turn);
  std::vector<FailedRequest> failed;
  if (request.withdrawn()) {
    COORDD_RETURN_IF_ERROR(requests_.Withdraw(rank, request.request(), failed));
    messages_.DeliverRefusals(failed, turn.effects);
    return absl::OkStatus();
  }
  ProcessSetProposal proposal{.remove = ProcessSetId{request.remove()}, .ranks = {}};
  for (int32_t member : request.ranks()) proposal.ranks.push_back(Rank{member});
  std::optional<AgreedRequest> agreed;
  COORDD_RETURN_IF_ERROR(requests_.Request(rank, request.request(), proposal, sets_.join().joined(),
                                           turn.now, agreed, failed));
  sets_.join().Heard(turn.now);
  messages_.DeliverRefusals(failed, turn.effects);
  if (!agreed.has_value()) return absl::OkStatus();
  if (!schedules_.Defer({Rank{}, agreed}, turn.effects)) Answer(*agreed, turn);
  return absl::OkStatus();
}

// Of a set that its members make and end alone.
absl::Status GenerationState::OnNamedSetRequest(Rank rank, const v1::ProcessSetRequest& request,
                                                const Turn& turn) {
  ProcessSetProposal proposal{
      .remove = ProcessSetId{request.remove()}, .ranks = {}, .name = request.name()};
  for (int32_t member : request.ranks()) proposal.ranks.push_back(Rank{member});
  std::vector<FailedRequest> failed;
  std::optional<AgreedRequest> agreed;
  if (request.withdrawn()) {
    requests_.named().Withdraw(rank, proposal.name, failed);
  } else if (const absl::Status may =
                 sets_.sets().CheckNamed(proposal.name, proposal.ranks, proposal.remove, rank);
             !may.ok()) {
    failed.push_back({0, {may, rank}, {rank}, proposal.name});
  } else {
    sets_.join().Heard(turn.now);
    std::vector<Rank> members =
        proposal.adds() ? proposal.ranks : sets_.sets().Find(proposal.remove)->Ranks();
    COORDD_RETURN_IF_ERROR(requests_.named().Request(
        rank, proposal, std::move(members), sets_.join().joined(), turn.now, agreed, failed));
  }
  messages_.DeliverRefusals(failed, turn.effects);
  if (!agreed.has_value()) return absl::OkStatus();
  if (!schedules_.Defer({Rank{}, agreed}, turn.effects)) Answer(*agreed, turn);
  return absl::OkStatus();
}

void GenerationState::Answer(const AgreedRequest& agreed, const Turn& turn) {
  const bool is_named = !agreed.proposal.name.empty();
  const absl::StatusOr<ProcessSetId> set = Apply(agreed, turn);
  if (!set.ok()) {
    std::vector<Rank> others = is_named ? agreed.members : sets_.all().Ranks();
    std::erase_if(others, [&](Rank rank) { return absl::c_linear_search(agreed.told, rank); });
    const absl::Status why(
        set.status().code(),
        absl::StrCat(TitleOf(agreed.number, agreed.proposal), ": ", set.status().message()));
    messages_.DeliverRefusals(
        {{agreed.number, {why, kNobody}, std::move(others), agreed.proposal.name}}, turn.effects);
    return;
  }
  v1::ProcessSetChange change;
  change.set_request(agreed.number);
  change.set_name(agreed.proposal.name);
  change.set_process_set(ToInt(*set));
  for (Rank member : agreed.proposal.ranks) change.add_ranks(ToInt(member));
  // Also those who have heard it before: it is over for everybody now (Resumed.open_ends).
  messages_.DeliverChange(
      change, is_named ? messages_.SessionsOf(agreed.members) : messages_.by_rank(), turn.effects);
  const std::string name = is_named ? absl::StrCat(" (", agreed.proposal.name, ")") : "";
  messages_.Emit(Event::Kind::kProcessSetChanged,
                 agreed.proposal.adds()
                     ? absl::StrCat("process set ", ToInt(*set), name, " of ranks ",
                                    ListString(agreed.proposal.ranks), " added")
                     : absl::StrCat("process set ", ToInt(*set), name, " removed"),
                 turn.effects);
}

absl::StatusOr<ProcessSetId> GenerationState::Apply(const AgreedRequest& agreed, const Turn& turn) {
  const ProcessSetProposal& proposal = agreed.proposal;
  const ProcessSetId ends = proposal.remove;
  if (!proposal.name.empty()) {
    // What was in order may not be any more: another has had its turn (GenerationSchedules::Defer).
    COORDD_RETURN_IF_ERROR(
        sets_.sets().CheckNamed(proposal.name, proposal.ranks, ends, agreed.members.front()));
  }
  if (proposal.adds())
    return proposal.name.empty() ? sets_.sets().Add(proposal.ranks)
                                 : sets_.sets().AddNamed(proposal.name, proposal.ranks);
  if (!proposal.ranks.empty()) {
    return absl::InvalidArgumentError("a removal that names ranks too, expected none");
  }
  if (proposal.name.empty()) COORDD_RETURN_IF_ERROR(sets_.sets().CheckRemove(ends));
  SetNegotiation& set = sets_.At(ends);
  if (const std::optional<PendingTensor> oldest = set.table().Oldest()) {
    return absl::FailedPreconditionError(
        absl::StrCat("process set ", ToInt(ends), " has ", set.table().pending(), " pending tensor",
                     set.table().pending() == 1 ? "" : "s", ", the oldest is ", oldest->name,
                     ": in ", RanksString(oldest->ready, oldest->ready_count), ", missing ",
                     RanksString(oldest->missing, oldest->missing_count)));
  }
  plans_.Plan(set, turn);  // its last plan precedes its end
  schedules_.EndSet(ends);
  sets_.Remove(ends);
  return ends;
}

// What has waited for the end of schedules.
void GenerationState::AnswerDue(const Turn& turn) {
  while (const std::optional<GenerationSchedules::Deferred> next = schedules_.TakeDue()) {
    if (next->agreed.has_value()) {
      Answer(*next->agreed, turn);
      continue;
    }
    std::vector<FailedTensor> failed;
    Join(next->rank, turn, failed);
    Conclude(failed, turn.effects);
  }
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
  if (!schedules_.Defer({rank, std::nullopt}, turn.effects)) Join(rank, turn, failed);
}

void GenerationState::Join(Rank rank, const Turn& turn, std::vector<FailedTensor>& failed) {
  std::vector<FailedTensor> refused;
  switch (sets_.join().Join(rank, turn.now, refused)) {
    case JoinState::Outcome::kRefused:
      failed.insert(failed.end(), refused.begin(), refused.end());
      return;
    case JoinState::Outcome::kFailed:
      PlanBeforeJoinEnds(turn, failed);
      failed = std::move(refused);
      sets_.EndJoin();
      return;
    case JoinState::Outcome::kJoined:
    case JoinState::Outcome::kComplete:
      break;
  }
  const bool is_last = sets_.join().joined().empty();
  std::vector<FailedRequest> without_it;
  requests_.Joined(rank, without_it);
  messages_.DeliverRefusals(without_it, turn.effects);
  sets_.Join(rank, failed);
  messages_.Emit(Event::Kind::kRankJoined,
                 is_last ? absl::StrCat("rank ", ToInt(rank), " has joined, the last one")
                         : absl::StrCat("rank ", ToInt(rank), " has joined, ",
                                        sets_.join().joined().size(), " of ", size(), " have"),
                 turn.effects);
  if (!is_last) return;
  PlanBeforeJoinEnds(turn, failed);
  sets_.EndJoin();
  plans_.PlanJoin(rank, turn.effects);
}

// A rank knows what to do with a batch in which it counts as joined as long as it has not heard of
// the join's end. Failures so far come first: they answer earlier reports.
void GenerationState::PlanBeforeJoinEnds(const Turn& turn, std::vector<FailedTensor>& failed) {
  messages_.DeliverFailures(failed, turn.effects);
  failed.clear();
  PlanReady(turn);
}

// False: it has not joined.
bool GenerationState::WithdrawJoin(Rank rank, absl::string_view reason, const Turn& turn,
                                   std::vector<FailedTensor>& failed) {
  if (schedules_.WithdrawJoin(rank, reason, failed)) return true;
  if (!sets_.join().Contains(rank)) return false;
  PlanBeforeJoinEnds(turn, failed);
  sets_.join().Withdraw(rank, reason, failed);
  sets_.EndJoin();
  return true;
}

}  // namespace coordd
