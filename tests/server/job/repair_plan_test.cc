#include "server/job/repair_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

struct Lane {
  int32_t lane = 0;
  int64_t completed = 0, held = 0, launched = 0;
};

v1::RecoveryReport Report(const std::vector<Lane>& lanes) {
  v1::RecoveryReport report;
  for (const Lane& lane : lanes) {
    v1::LaneReport& entry = *report.add_lanes();
    entry.set_lane(lane.lane);
    entry.set_completed(lane.completed);
    entry.set_held(lane.held);
    entry.set_launched(lane.launched);
  }
  return report;
}

absl::StatusOr<std::map<LaneId, int64_t>> Plan(const std::vector<v1::RecoveryReport>& reports) {
  std::vector<SurvivorReport> survivors;
  for (size_t i = 0; i < reports.size(); ++i)
    survivors.push_back({static_cast<int32_t>(i), &reports[i]});
  return PlanRepair(survivors);
}

TEST(PlanRepair, NothingWasLaunched) {
  EXPECT_THAT(Plan({Report({}), Report({})}), IsOkAndHolds(IsEmpty()));
}

TEST(PlanRepair, WhatNobodyHasCompletedIsSubmittedAnew) {
  EXPECT_THAT(Plan({Report({{0, 0, 1, 2}}), Report({{0, 0, 0, 1}})}), IsOkAndHolds(IsEmpty()));
}

TEST(PlanRepair, WhatOneHasCompletedAllOthersHoldAndComplete) {
  EXPECT_THAT(Plan({Report({{0, 7, 7, 9}}), Report({{0, 6, 7, 7}}), Report({{0, 6, 7, 8}})}),
              IsOkAndHolds(UnorderedElementsAre(Pair(LaneId{0}, 7))));
}

TEST(PlanRepair, LanesAreApart) {
  EXPECT_THAT(Plan({Report({{0, 3, 3, 3}, {1 << 19, 0, 1, 1}}),
                    Report({{0, 2, 3, 3}, {1 << 19, 0, 0, 1}})}),
              IsOkAndHolds(UnorderedElementsAre(Pair(LaneId{0}, 3))));
}

TEST(PlanRepair, AResultThatOneRankHasGivenAwayAndAnotherDoesNotHoldIsABrokenPromise) {
  EXPECT_THAT(
      Plan({Report({{0, 7, 7, 7}}), Report({{0, 6, 6, 7}})}),
      StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("rank 0 has completed batch 7"),
                                                  HasSubstr("rank 1 holds results up to 6"))));
}

}  // namespace
}  // namespace coordd
