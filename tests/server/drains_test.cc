#include "server/drains.h"
#include "tests/support/start_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Drains, CountFromWhenTheWorkerIsTold) {
  Drains drains;
  drains.Ask("w1", "operator alice", absl::Seconds(30));
  drains.Ask("w2", "operator alice", absl::Seconds(10));
  EXPECT_EQ(drains.NextDeadline(), absl::InfiniteFuture());
  EXPECT_FALSE(drains.Find("w1")->has_begun());
  EXPECT_EQ(drains.Begin("w1", kStart).until, kStart + absl::Seconds(30));
  drains.Begin("w2", kStart + absl::Seconds(5));
  EXPECT_EQ(drains.NextDeadline(), kStart + absl::Seconds(15));
  EXPECT_THAT(drains.Overdue(kStart + absl::Seconds(14)), IsEmpty());
  EXPECT_THAT(drains.Overdue(kStart + absl::Seconds(30)), ElementsAre("w1", "w2"));
  EXPECT_TRUE(drains.Drop("w2"));
  EXPECT_FALSE(drains.Drop("w2"));
  EXPECT_EQ(drains.Find("w2"), nullptr);
  EXPECT_THAT(drains.worker_ids(), ElementsAre("w1"));
}

TEST(Drains, TheLastWordCountsAndBeginsAgain) {
  Drains drains;
  drains.Ask("w1", "operator alice", absl::Seconds(30));
  drains.Begin("w1", kStart);
  drains.Ask("w1", "operator bob", absl::Seconds(5));
  EXPECT_FALSE(drains.Find("w1")->has_begun());
  EXPECT_EQ(drains.Find("w1")->asked_by, "operator bob");
  EXPECT_EQ(drains.size(), 1u);
}

TEST(Drains, ATimeInWhichCoorddDidNotRunIsNobodys) {
  Drains drains;
  drains.Ask("w1", "operator alice", absl::Seconds(30));
  drains.Ask("w2", "operator alice", absl::Seconds(30));
  drains.Begin("w1", kStart);
  drains.Forgive(absl::Seconds(100));
  EXPECT_EQ(drains.NextDeadline(), kStart + absl::Seconds(130));
  EXPECT_FALSE(drains.Find("w2")->has_begun());
}

TEST(Drains, WhatIsStoredBeginsAnew) {
  Drains drains;
  drains.Ask("w1", "operator alice", absl::Seconds(30));
  drains.Begin("w1", kStart);
  Drains restored;
  restored.Restore(drains.Record());
  ASSERT_NE(restored.Find("w1"), nullptr);
  EXPECT_EQ(restored.Find("w1")->grace, absl::Seconds(30));
  EXPECT_EQ(restored.Find("w1")->asked_by, "operator alice");
  EXPECT_FALSE(restored.Find("w1")->has_begun());
}

TEST(Drains, WhoComesBackIsToldAnew) {
  Drains drains;
  const absl::Time now = kStart;
  drains.Ask("w1", "alice", absl::Seconds(5));
  drains.Begin("w1", now);
  drains.Suspend();
  EXPECT_FALSE(drains.Find("w1")->has_begun());
  EXPECT_EQ(drains.NextDeadline(), absl::InfiniteFuture());
  EXPECT_THAT(drains.Overdue(now + absl::Hours(1)), IsEmpty());
  EXPECT_EQ(drains.Begin("w1", now + absl::Hours(1)).until,
            now + absl::Hours(1) + absl::Seconds(5));
}

}  // namespace
}  // namespace coordd
