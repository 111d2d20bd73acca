// What a generation of a job leaves of its process sets to the next. docs/design/recovery.md,
// "Process sets survive".
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "common/protocol/process_set_parts.h"
#include "common/protocol/protocol_bounds.h"
#include "server/generation/process_sets.h"
#include "server/job/job_state.h"

namespace coordd {

// Takes the next part of a survivor's report.
absl::Status JobState::AddReport(const GenerationState& generation, v1::RecoveryReport report,
                                 v1::RecoveryReport& whole) {
  if (report.lanes_size() > 0) whole.mutable_lanes()->Swap(report.mutable_lanes());
  if (!report.has_process_sets()) return absl::OkStatus();
  const int32_t checked = whole.process_sets().sets_size();
  AddPart(report.process_sets(), *whole.mutable_process_sets());
  return CheckProcessSets(whole.process_sets(), generation.size(), checked);
}

// As coordd has said them in the generation that is over, or else as the survivor among `sessions`
// says who has heard most of it, but for those of whose end another one has heard
// (ResumedGeneration::Removal): it knows the number, and no such set.
v1::ProcessSets JobState::LeftSets(const std::vector<SessionId>& sessions) const {
  if (left_sets_.has_value()) return *left_sets_;
  std::vector<const v1::ProcessSets*> said;
  for (SessionId session : sessions) {
    const Worker& worker = workers_.at(session);
    if (worker.previous_rank < 0 || !worker.report.has_process_sets()) continue;
    said.push_back(&worker.report.process_sets());
  }
  const auto newest = std::max_element(said.begin(), said.end(), [](const auto* a, const auto* b) {
    return a->position() < b->position();
  });
  if (newest == said.end()) return {};
  v1::ProcessSets left = **newest;
  for (const v1::ProcessSets* other : said) {
    std::set<int32_t> known;
    for (const v1::ProcessSet& set : other->sets()) known.insert(set.process_set());
    auto* const sets = left.mutable_sets();
    const auto ended = std::remove_if(sets->begin(), sets->end(), [&](const v1::ProcessSet& set) {
      return set.process_set() <= other->last_process_set() && !known.contains(set.process_set());
    });
    sets->erase(ended, sets->end());
  }
  return left;
}

v1::ProcessSets JobState::NextSets(const std::vector<SessionId>& sessions,
                                   const Topology& topology) const {
  const bool all_keep = std::all_of(sessions.begin(), sessions.end(), [this](SessionId session) {
    return workers_.at(session).join.keeps_process_sets();
  });
  if (!reforming_.open() || !all_keep) return {};
  std::map<int32_t, Rank> moved;
  for (size_t rank = 0; rank < topology.member_of_rank.size(); ++rank) {
    const Worker& worker = workers_.at(sessions[topology.member_of_rank[rank]]);
    if (worker.previous_rank >= 0) moved[worker.previous_rank] = Rank{static_cast<int32_t>(rank)};
  }
  return Moved(LeftSets(sessions), moved);
}

bool JobState::Inheritance::has_sets() const {
  return !process_sets.sets().empty() || process_sets.last_process_set() > 0;
}

void JobState::DeliverSets(const std::vector<SessionId>& to, const Inheritance& inherited,
                           Effects& effects) const {
  if (!inherited.has_sets()) return;
  for (v1::ProcessSets& part : InParts(inherited.process_sets, kProcessSetsBytes)) {
    std::shared_ptr<v1::CoordinatorMessage> message = NewMessage(generation());
    *message->mutable_process_sets() = std::move(part);
    effects.outgoing.push_back(Deliver{to, std::move(message)});
  }
}

}  // namespace coordd
