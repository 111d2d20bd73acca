#include "server/job/inheritance.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "server/job/admission.h"

namespace coordd {

absl::Status Survivors::AddReport(int32_t size, v1::RecoveryReport report, JobWorker& survivor) {
  if (report.lanes_size() > 0) survivor.report.mutable_lanes()->Swap(report.mutable_lanes());
  return report.has_process_sets() ? survivor.saying.Add(report.process_sets(), size)
                                   : absl::OkStatus();
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

SetsLeft Survivors::Left(const std::vector<SessionId>& sessions) const {
  const bool all_keep = std::all_of(sessions.begin(), sessions.end(), [this](SessionId session) {
    return workers_.at(session).join.keeps_process_sets();
  });
  if (!reforming_.open() || !all_keep) return {};
  // As coordd has said them in the generation that is over, if it knows.
  if (known_.has_value()) return *known_;
  std::vector<std::shared_ptr<const v1::ProcessSets>> said;
  for (SessionId session : sessions) {
    const JobWorker& worker = workers_.at(session);
    if (worker.previous_rank >= 0 && worker.its_sets.sets != nullptr)
      said.push_back(worker.its_sets.sets);
  }
  return SetsLeft(std::move(said));
}

std::vector<Rank> Survivors::Moved(const std::vector<SessionId>& by_rank) const {
  std::vector<Rank> moved;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const JobWorker& worker = workers_.at(by_rank[rank]);
    if (worker.previous_rank < 0) continue;
    const auto before = static_cast<size_t>(worker.previous_rank);
    if (moved.size() <= before) moved.resize(before + 1, Rank{-1});
    moved[before] = Rank{static_cast<int32_t>(rank)};
  }
  return moved;
}

void Survivors::ForgetSets(const Turn& turn) {
  if (known_.has_value()) turn.Bury(known_->Bury());
  known_.reset();
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
