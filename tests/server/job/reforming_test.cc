#include "server/job/reforming.h"
#include "tests/support/start_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coordd {
namespace {

using ::testing::Optional;

constexpr absl::Duration kWindow = absl::Seconds(10);
constexpr absl::Duration kTimeout = absl::Minutes(1);

Reforming Raise() {
  Reforming reforming({OnFailure::kRaise, kWindow, kTimeout});
  reforming.Formed(kStart);
  return reforming;
}

TEST(Reforming, NothingFollowsWhereTheJobEnds) {
  Reforming reforming({OnFailure::kEnd, kWindow, kTimeout});
  EXPECT_FALSE(reforming.wanted());
  EXPECT_FALSE(reforming.Broken("rank 1 was lost", /*lost=*/true, /*left=*/false, kStart));
  EXPECT_FALSE(reforming.open());
  EXPECT_EQ(reforming.NextDeadline(), absl::InfiniteFuture());
}

TEST(Reforming, ALossIsFollowedByAnotherGenerationAndAGoodbyeIsNot) {
  Reforming reforming = Raise();
  EXPECT_FALSE(reforming.Broken("rank 1 left", /*lost=*/false, /*left=*/true, kStart));
  reforming = Raise();
  EXPECT_TRUE(reforming.Broken("rank 1 was lost", /*lost=*/true, /*left=*/false, kStart));
  EXPECT_TRUE(reforming.open());
  EXPECT_EQ(reforming.reason(), "rank 1 was lost");
  reforming.Formed(kStart);
  EXPECT_FALSE(reforming.open());
}

TEST(Reforming, SaysWhyNoneFollowsUntilTheJobBeginsAnew) {
  const ReformingOptions options{OnFailure::kRaise, kWindow, kTimeout, /*reset_limit=*/1};
  Reforming reforming(options);
  reforming.Formed(kStart);
  EXPECT_TRUE(reforming.Broken("rank 1 was lost", /*lost=*/true, /*left=*/false, kStart));
  reforming.Formed(kStart);
  EXPECT_EQ(reforming.none_follows(), "");
  EXPECT_FALSE(reforming.Broken("rank 0 was lost", /*lost=*/true, /*left=*/false, kStart));
  EXPECT_EQ(reforming.none_follows(), "--reset-limit 1 is reached");
  reforming.Ended();
  EXPECT_EQ(reforming.none_follows(), "--reset-limit 1 is reached");
  EXPECT_TRUE(reforming.unfinished());
  reforming.Begin(options, /*same_run=*/true);
  EXPECT_EQ(reforming.none_follows(), "");
  EXPECT_TRUE(reforming.unfinished()) << "the first generation has to say what is lost";
  reforming.Formed(kStart);
  EXPECT_FALSE(reforming.unfinished());
}

TEST(Reforming, AGoodbyeLeavesNothingUnfinished) {
  const ReformingOptions options{OnFailure::kRaise, kWindow, kTimeout, /*reset_limit=*/1};
  Reforming reforming(options);
  reforming.Formed(kStart);
  reforming.Broken("rank 1 left", /*lost=*/false, /*left=*/true, kStart);
  EXPECT_EQ(reforming.none_follows(), "");
  EXPECT_FALSE(reforming.unfinished());
  // Nor has another run anything to do with it.
  Reforming lost(options);
  lost.Formed(kStart);
  lost.Broken("rank 1 was lost", /*lost=*/true, /*left=*/false, kStart);
  lost.Ended();
  lost.Begin(options, /*same_run=*/false);
  EXPECT_FALSE(lost.unfinished());
}

TEST(Reforming, TakesAGoodbyeForNoExplanationOfWhatItsSenderHasSaid) {
  Reforming reforming = Raise();
  reforming.SaysGoodbye(Rank{0}, kStart);
  EXPECT_EQ(reforming.Verdict(kStart), std::nullopt);  // there is nothing to explain
  reforming.Failed("rank 0 reported that tensor a failed", /*silent=*/false, Rank{0}, kStart);
  reforming.SaysGoodbye(Rank{1}, kStart);
  EXPECT_EQ(reforming.Verdict(kStart), std::nullopt);
  reforming.SaysGoodbye(Rank{0}, kStart);
  EXPECT_EQ(reforming.Verdict(kStart), "rank 0 reported that tensor a failed");
}

TEST(Reforming, WaitsForReportsAndThenForEnoughWorkers) {
  Reforming reforming = Raise();
  reforming.Broken("rank 1 was lost", /*lost=*/true, /*left=*/false, kStart);
  EXPECT_EQ(reforming.NextDeadline(), kStart + kWindow);
  EXPECT_FALSE(reforming.ReportsAreOverdue(kStart + kWindow - absl::Nanoseconds(1)));
  EXPECT_TRUE(reforming.ReportsAreOverdue(kStart + kWindow));
  reforming.Gathering(kStart + absl::Seconds(1));
  EXPECT_FALSE(reforming.ReportsAreOverdue(kStart + kWindow));
  EXPECT_EQ(reforming.NextDeadline(), kStart + absl::Seconds(1) + kTimeout);
  EXPECT_FALSE(reforming.TimedOut(kStart + kTimeout));
  EXPECT_TRUE(reforming.TimedOut(kStart + absl::Seconds(1) + kTimeout));
}

TEST(Reforming, AFailureWaitsForTheDepartureThatExplainsIt) {
  Reforming reforming = Raise();
  reforming.Failed("rank 0 reported that tensor a failed", /*silent=*/false, Rank{0}, kStart);
  reforming.Failed("rank 2 reported that tensor a failed", /*silent=*/false, Rank{2},
                   kStart + absl::Milliseconds(1));
  EXPECT_EQ(reforming.Verdict(kStart + kBlameWindow - absl::Nanoseconds(1)), std::nullopt);
  EXPECT_THAT(reforming.Verdict(kStart + kBlameWindow),
              Optional(std::string("rank 0 reported that tensor a failed")));
  reforming.Broken("rank 1 was lost", /*lost=*/true, /*left=*/false, kStart);
  EXPECT_EQ(reforming.Verdict(kStart + absl::Hours(1)), std::nullopt);
}

TEST(Reforming, SilenceWaitsForWhatOthersSay) {
  Reforming reforming = Raise();
  reforming.Failed("rank 0 has lost a connection", /*silent=*/false, Rank{0}, kStart);
  const absl::Time heard = kStart + absl::Milliseconds(20);
  reforming.Failed("rank 2 hears nothing from rank 1", /*silent=*/true, Rank{2}, heard);
  reforming.Failed("rank 1 hears nothing from rank 2", /*silent=*/true, Rank{1},
                   heard + kBlameWindow);
  EXPECT_EQ(reforming.Verdict(heard + kSilenceWindow - absl::Nanoseconds(1)), std::nullopt);
  EXPECT_THAT(reforming.Verdict(heard + kSilenceWindow),
              Optional(std::string("rank 2 hears nothing from rank 1")));
}

TEST(Reforming, WhatFailsWithoutADepartureIsTriedThreeTimes) {
  Reforming reforming = Raise();
  for (int i = 0; i < kMaxFruitlessGenerations; ++i) {
    EXPECT_TRUE(reforming.Broken("a deadline", /*lost=*/false, /*left=*/false, kStart));
    reforming.Formed(kStart);
  }
  Reforming explained = reforming;
  EXPECT_FALSE(reforming.Broken("a deadline", /*lost=*/false, /*left=*/false, kStart));
  EXPECT_TRUE(explained.Broken("rank 1 was lost", /*lost=*/true, /*left=*/false, kStart));
  explained.Formed(kStart);
  EXPECT_TRUE(explained.Broken("a deadline", /*lost=*/false, /*left=*/false, kStart));
}

TEST(Reforming, AnEndThatIsTakenUpAnewCountsOnce) {
  Reforming reforming = Raise();
  for (int i = 0; i < kMaxFruitlessGenerations; ++i) {
    EXPECT_TRUE(reforming.Broken("a deadline", /*lost=*/false, /*left=*/false, kStart));
    reforming.Suspended();
    EXPECT_FALSE(reforming.open());
    EXPECT_EQ(reforming.NextDeadline(), absl::InfiniteFuture());
    EXPECT_TRUE(reforming.Broken("a deadline", /*lost=*/false, /*left=*/false, kStart));
    reforming.Formed(kStart);
  }
  EXPECT_FALSE(reforming.Broken("a deadline", /*lost=*/false, /*left=*/false, kStart));
}

TEST(Reforming, AGenerationThatWasTakenUpAnewBeforeItsEndDoesNotCount) {
  Reforming reforming = Raise();
  for (int i = 0; i < 2 * kMaxFruitlessGenerations; ++i) {
    reforming.Failed("rank 1 hears nothing from rank 2", /*silent=*/true, Rank{1}, kStart);
    reforming.Suspended();  // before anybody was blamed for it
    EXPECT_TRUE(reforming.Broken("the peer is lost", /*lost=*/false, /*left=*/false, kStart));
    reforming.Formed(kStart);
  }
  for (int i = 0; i < kMaxFruitlessGenerations; ++i) {
    EXPECT_TRUE(reforming.Broken("a deadline", /*lost=*/false, /*left=*/false, kStart));
    reforming.Formed(kStart);
  }
  EXPECT_FALSE(reforming.Broken("a deadline", /*lost=*/false, /*left=*/false, kStart));
}

TEST(Reforming, AGenerationThatHasLivedForLongDoesNotCount) {
  Reforming reforming = Raise();
  absl::Time now = kStart;
  for (int i = 0; i < 2 * kMaxFruitlessGenerations; ++i) {
    now += kFruitfulLife;
    EXPECT_TRUE(reforming.Broken("a deadline", /*lost=*/false, /*left=*/false, now));
    reforming.Formed(now);
  }
}

}  // namespace
}  // namespace coordd
