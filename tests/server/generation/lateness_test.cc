#include "server/generation/lateness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coordd {
namespace {

using testing::ElementsAre;

constexpr absl::Duration kMs = absl::Milliseconds(1);

TEST(CycleLatenessTest, WhoSpentLessTimeInTheSameCollectivesCameLater) {
  CycleLateness lateness(/*members=*/3, /*collectives=*/2);
  EXPECT_FALSE(lateness.Told(0, 10, 1000 * kMs).has_value());
  EXPECT_FALSE(lateness.Told(1, 10, 900 * kMs).has_value());
  const auto window = lateness.Told(2, 10, 200 * kMs);
  ASSERT_TRUE(window.has_value());
  EXPECT_EQ(window->collectives, 20);
  EXPECT_THAT(window->lag, ElementsAre(0 * kMs, 5 * kMs, 40 * kMs));
}

TEST(CycleLatenessTest, AWindowBeginsWhereTheLastOneEnded) {
  CycleLateness lateness(2, 1);
  lateness.Told(0, 10, 1000 * kMs);
  lateness.Told(1, 10, 0 * kMs);
  lateness.Told(0, 20, 1000 * kMs);
  const auto window = lateness.Told(1, 20, 500 * kMs);
  ASSERT_TRUE(window.has_value());
  EXPECT_THAT(window->lag, ElementsAre(50 * kMs, 0 * kMs)) << "what was before does not count";
}

TEST(CycleLatenessTest, RanksThatTellAtDifferentTimesAreComparedAtTheSameCycle) {
  // Rank 1 stops once for a second, in cycle 6; rank 0's heartbeat has come before, rank 2's after.
  CycleLateness lateness(3, 1);
  lateness.Told(0, 4, 4 * kMs);
  lateness.Told(2, 4, 4 * kMs);
  lateness.Told(2, 8, 1008 * kMs);
  const auto before = lateness.Told(1, 4, 4 * kMs);
  ASSERT_TRUE(before.has_value());
  EXPECT_THAT(before->lag, ElementsAre(0 * kMs, 0 * kMs, 0 * kMs));
  EXPECT_FALSE(lateness.Told(1, 8, 8 * kMs).has_value()) << "rank 0 has not told";
  const auto after = lateness.Told(0, 8, 1008 * kMs);
  ASSERT_TRUE(after.has_value());
  EXPECT_THAT(after->lag, ElementsAre(0 * kMs, 250 * kMs, 0 * kMs));
}

TEST(CycleLatenessTest, MarksThatNotAllMembersHaveArePassedOver) {
  CycleLateness lateness(2, 1);
  for (int64_t cycle = 1; cycle <= 8; ++cycle) EXPECT_FALSE(lateness.Told(0, cycle, cycle * kMs));
  EXPECT_TRUE(lateness.Told(1, 4, 0 * kMs));
  EXPECT_TRUE(lateness.Told(1, 8, 0 * kMs));
  EXPECT_FALSE(lateness.Told(0, 5, 5 * kMs)) << "behind the window's end";
}

TEST(CycleLatenessTest, KeepsABoundedNumberOfMarks) {
  CycleLateness lateness(2, 1);
  constexpr int64_t kMany = 3 * static_cast<int64_t>(CycleLateness::kOpenMarksMax);
  for (int64_t cycle = 1; cycle <= kMany; ++cycle) lateness.Told(0, cycle, cycle * kMs);
  EXPECT_FALSE(lateness.Told(1, 1, kMs)) << "forgotten";
  EXPECT_TRUE(lateness.Told(1, kMany, kMs));
}

TEST(CycleLatenessTest, SaysNothingWithoutACollectiveThatNeedsEveryRank) {
  CycleLateness lateness(1, /*collectives=*/0);
  EXPECT_FALSE(lateness.Told(0, 10, kMs).has_value());
}

TEST(SlowestRankTest, IsClearlyBehindTheOthers) {
  EXPECT_EQ(SlowestRank({0 * kMs, 1 * kMs, 50 * kMs, 2 * kMs}), 2);
  EXPECT_EQ(SlowestRank({50 * kMs, 0 * kMs}), 0);
}

TEST(SlowestRankTest, NobodyIsWhenTheDifferenceIsSmallOrShared) {
  EXPECT_EQ(SlowestRank({}), -1);
  EXPECT_EQ(SlowestRank({50 * kMs}), -1) << "alone";
  EXPECT_EQ(SlowestRank({0 * kMs, 0 * kMs, 1 * kMs}), -1);
  EXPECT_EQ(SlowestRank({0 * kMs, 40 * kMs, 45 * kMs, 50 * kMs}), -1) << "most are as late";
}

}  // namespace
}  // namespace coordd
