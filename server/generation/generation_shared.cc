// What several ranks report at once, in one message of a node session. The rule is OnTensorsReady
// of each, rank after rank; where that is no more than counting, it is done tensor after tensor.
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "server/generation/generation_state.h"

namespace coordd {
namespace {

Rank FirstOf(Rank rank) { return rank; }
Rank FirstOf(const ReadinessTable::Reporters& reporters) { return reporters.ranks.front(); }
int64_t CountOf(Rank) { return 1; }
int64_t CountOf(const ReadinessTable::Reporters& reporters) {
  return static_cast<int64_t>(reporters.ranks.size());
}

}  // namespace

GenerationState::RankGroup* GenerationState::GroupOf(SessionRange sessions) {
  const auto known = groups_.find({sessions.first, sessions.count});
  if (known != groups_.end()) return &known->second;
  std::map<SessionId, Rank> rank_of;
  for (size_t rank = 0; rank < by_rank_.size(); ++rank)
    rank_of[by_rank_[rank]] = Rank{static_cast<int32_t>(rank)};
  std::vector<Rank> ranks;
  for (int32_t i = 0; i < sessions.count; ++i) {
    const auto rank = rank_of.find(SessionId{ToInt(sessions.first) + i});
    if (rank == rank_of.end()) return nullptr;
    ranks.push_back(rank->second);
  }
  // Nodes whose ranks keep changing company are not what this is for.
  if (groups_.size() > by_rank_.size()) groups_.clear();
  RankGroup group{.reporters = {sets_.all(), std::move(ranks)}};
  return &groups_.emplace(std::make_pair(sessions.first, sessions.count), std::move(group))
              .first->second;
}

template <typename Reporters>
bool GenerationState::CountAlike(SetState& set, const v1::CachedTensors& cached,
                                 const Reporters& who, absl::Time now) {
  const ReadinessTable::Slots slots{cached.first_slot(), cached.bits()};
  ReadinessTable::Known* first = set.slots.Find(slots.first);
  if (first == nullptr) return false;
  std::optional<int64_t> tensors = set.table.ReportBundle(*first, slots, who, now);
  if (!tensors.has_value() && first->pending == nullptr) {
    std::vector<ReadinessTable::Known*> all;
    const bool known = ForEachSlot(slots.first, slots.bits, [&](int64_t slot) {
      all.push_back(set.slots.Find(slot));
      return all.back() != nullptr;
    });
    if (known && set.table.BeginBundle(all, slots, FirstOf(who), now))
      tensors = set.table.ReportBundle(*first, slots, who, now);
  }
  if (!tensors.has_value()) return false;
  reported_by_slot_ += *tensors * CountOf(who);
  join_.Heard(now);
  return true;
}

template bool GenerationState::CountAlike(SetState&, const v1::CachedTensors&, const Rank&,
                                          absl::Time);

// Empty: something is wrong, or there is more to do than to count.
std::vector<ReadinessTable::Known*> GenerationState::SharedSlots(const RankGroup& group,
                                                                 const v1::CachedTensors& cached) {
  SetState& set = *states_.at(ProcessSetId{0});
  std::vector<ReadinessTable::Known*> found;
  found.reserve(8 * cached.bits().size());
  // Two slots of one tensor: the second time it is submitted again while it is pending.
  absl::flat_hash_set<absl::string_view> new_names;
  const bool all = ForEachSlot(cached.first_slot(), cached.bits(), [&](int64_t slot) {
    ReadinessTable::Known* known = set.slots.Find(slot);
    if (known == nullptr || !set.table.CanShare(group.reporters, *known)) return false;
    found.push_back(known);
    return known->pending != nullptr || new_names.insert(known->spec.name).second;
  });
  const bool has_room = set.table.HasRoomFor(static_cast<int64_t>(new_names.size()));
  return all && has_room ? found : std::vector<ReadinessTable::Known*>();
}

// A schedule takes reports out of the count; for whoever has joined nobody waits.
MembersReports GenerationState::WhoHasReported() const {
  const ReadinessTable& table = states_.at(ProcessSetId{0})->table;
  return {
      .generation = identity_.generation,
      .members = &by_rank_,
      .all_are_asked = !ended_ && schedules_.empty() && deferred_.empty() && join_.joined().empty(),
      .none_is_pending = table.pending() == 0 && !table.has_ready()};
}

bool GenerationState::OnSharedReady(const RankGroup& group, const v1::TensorsReady& ready,
                                    const Turn& turn) {
  // Several sets: what is wrong with the second one would be found when the first has been counted.
  if (ended_ || !ready.tensors().empty() || ready.cached_size() != 1) return false;
  if (ready.cached(0).process_set() != 0 || !join_.joined().empty() || !schedules_.empty())
    return false;
  SetState& set = *states_.at(ProcessSetId{0});
  const v1::CachedTensors& cached = ready.cached(0);
  const auto has_heard = [&](Rank rank) { return set.slots.HasHeard(ToInt(rank), cached.known()); };
  const std::vector<Rank>& ranks = group.reporters.ranks;
  if (!set.slots.AllHaveHeard(cached.known()) && !absl::c_all_of(ranks, has_heard)) return false;
  if (CountAlike(set, cached, group.reporters, turn.now)) {
    touched_.push_back(&set);
    TouchTouched();
    NoteStallsEnded(turn.effects);
    return true;
  }
  const std::vector<ReadinessTable::Known*> slots = SharedSlots(group, cached);
  if (slots.empty()) return false;
  const ReadinessTable::Reporters& reporters = group.reporters;
  std::vector<FailedTensor> failed;
  absl::Duration delay = absl::ZeroDuration();  // of the last `with_delay` tensors
  int64_t with_delay = 0;
  for (ReadinessTable::Known* known : slots) {
    const absl::Duration its = known->pending != nullptr ? ReadinessTable::DelayOf(*known, turn.now)
                                                         : absl::ZeroDuration();
    if (its != delay) set.table.NoteLag(reporters.ranks, delay, std::exchange(with_delay, 0));
    delay = its;
    ++with_delay;
    set.table.ReportShared(reporters, *known, turn.now, failed);
  }
  set.table.NoteLag(reporters.ranks, delay, with_delay);
  reported_by_slot_ += static_cast<int64_t>(slots.size() * reporters.ranks.size());
  join_.Heard(turn.now);
  DeliverFailures(failed, turn.effects);
  touched_.push_back(&set);
  TouchTouched();
  NoteStallsEnded(turn.effects);
  return true;
}

}  // namespace coordd
