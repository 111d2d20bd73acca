#include "server/job/repair_plan.h"

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

struct Furthest {
  int64_t completed = 0;
  int32_t rank = 0;
};

}  // namespace

absl::StatusOr<std::map<LaneId, int64_t>> PlanRepair(absl::Span<const SurvivorReport> survivors) {
  std::map<LaneId, Furthest> furthest;
  for (const SurvivorReport& survivor : survivors) {
    for (const v1::LaneReport& lane : survivor.report->lanes()) {
      Furthest& most = furthest[LaneId{lane.lane()}];
      if (lane.completed() > most.completed) most = {lane.completed(), survivor.rank};
    }
  }
  for (const SurvivorReport& survivor : survivors) {
    for (const v1::LaneReport& lane : survivor.report->lanes()) {
      const Furthest& most = furthest.at(LaneId{lane.lane()});
      if (lane.held() >= most.completed) continue;
      return absl::InternalError(absl::StrCat(
          "rank ", most.rank, " has completed batch ", most.completed, " of lane ", lane.lane(),
          ", of which rank ", survivor.rank, " holds results up to ", lane.held(), " only"));
    }
  }
  std::map<LaneId, int64_t> plan;
  for (const auto& [lane, most] : furthest) {
    if (most.completed > 0) plan[lane] = most.completed;
  }
  return plan;
}

}  // namespace coordd
