#include "server/job/inheritance.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/protocol/process_set_parts.h"
#include "server/generation/process_sets.h"
#include "server/job/admission.h"

namespace coordd {

bool Inheritance::has_sets() const {
  return !process_sets.sets().empty() || process_sets.last_process_set() > 0;
}

absl::Status Survivors::AddReport(int32_t size, v1::RecoveryReport report,
                                  v1::RecoveryReport& whole) {
  if (report.lanes_size() > 0) whole.mutable_lanes()->Swap(report.mutable_lanes());
  if (!report.has_process_sets()) return absl::OkStatus();
  const int32_t checked = whole.process_sets().sets_size();
  COORDD_RETURN_IF_ERROR(AddPart(report.process_sets(), *whole.mutable_process_sets()));
  return CheckProcessSets(whole.process_sets(), size, checked);
}

Topology Survivors::TopologyOf(const std::vector<SessionId>& sessions) const {
  std::vector<TopologyMember> members;
  members.reserve(sessions.size());
  bool all_know_it = true;
  for (SessionId session : sessions) {
    const JobWorker& worker = workers_.at(session);
    all_know_it = all_know_it && worker.join.knows_topology();
    members.push_back(ToTopologyMember(worker.join));
    members.back().previous_rank = worker.previous_rank;
  }
  Topology topology = OrderRanks(members);
  if (!all_know_it) topology.levels.clear();
  return topology;
}

bool Survivors::Any(const std::vector<SessionId>& sessions) const {
  return std::any_of(sessions.begin(), sessions.end(),
                     [this](SessionId session) { return workers_.at(session).previous_rank >= 0; });
}

std::vector<SurvivorReport> Survivors::ReportsOf(const std::vector<SessionId>& sessions) const {
  std::vector<SurvivorReport> reports;
  for (SessionId session : sessions) {
    const JobWorker& worker = workers_.at(session);
    if (worker.previous_rank >= 0) reports.push_back({worker.previous_rank, &worker.report});
  }
  return reports;
}

absl::Status Survivors::Check(const std::vector<SessionId>& sessions) const {
  if (!repeats()) return absl::OkStatus();
  return PlanRepair(ReportsOf(sessions)).status();
}

Inheritance Survivors::Of(const std::vector<SessionId>& sessions, const Topology& topology) const {
  return {Repairs(sessions), NextSets(sessions, topology)};
}

std::vector<v1::LaneRepair> Survivors::Repairs(const std::vector<SessionId>& sessions) const {
  std::vector<v1::LaneRepair> repairs;
  if (!repeats()) return repairs;
  const auto plan = PlanRepair(ReportsOf(sessions));
  COORDD_CHECK(plan.ok());  // Check has seen them all
  for (const auto& [lane, completed] : *plan) {
    v1::LaneRepair& repair = repairs.emplace_back();
    repair.set_lane(ToInt(lane));
    repair.set_completed(completed);
  }
  return repairs;
}

// As the survivor among `sessions` says who has heard most of it, but for those of whose end
// another one has heard (ResumedGeneration::Removal): it knows the number, and no such set.
v1::ProcessSets Survivors::ReportedSets(const std::vector<SessionId>& sessions) const {
  std::vector<const v1::ProcessSets*> said;
  for (SessionId session : sessions) {
    const JobWorker& worker = workers_.at(session);
    if (worker.previous_rank < 0 || worker.its_sets == nullptr) continue;
    said.push_back(worker.its_sets.get());
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

// What of them there is in the next generation, of these.
v1::ProcessSets Survivors::NextSets(const std::vector<SessionId>& sessions,
                                    const Topology& topology) const {
  const bool all_keep = std::all_of(sessions.begin(), sessions.end(), [this](SessionId session) {
    return workers_.at(session).join.keeps_process_sets();
  });
  if (!reforming_.open() || !all_keep) return {};
  std::map<int32_t, Rank> moved;
  for (size_t rank = 0; rank < topology.member_of_rank.size(); ++rank) {
    const JobWorker& worker = workers_.at(sessions[topology.member_of_rank[rank]]);
    if (worker.previous_rank >= 0) moved[worker.previous_rank] = Rank{static_cast<int32_t>(rank)};
  }
  // As coordd has said them in the generation that is over, if it knows.
  if (left_sets_.has_value()) return Moved(*left_sets_, moved);
  return Moved(ReportedSets(sessions), moved);
}

std::string LostStateText(Generation generation, int64_t batches) {
  return absl::StrCat(
      "no member with state is left: generation ", ToInt(generation),
      " has none of those who were in the one before, and begins anew; ",
      batches > 0 ? absl::StrCat("the steps of ", batches, batches == 1 ? " batch" : " batches",
                                 " that had been executed are lost")
                  : "what they had done is lost",
      ", but for what the program has saved itself");
}

}  // namespace coordd
