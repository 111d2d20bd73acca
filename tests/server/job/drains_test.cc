#include "server/job/drains.h"
#include "tests/support/start_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
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
  // Also one who was taken for gone.
  EXPECT_TRUE(drains.NoteGone("w1"));
  drains.Suspend();
  ASSERT_NE(drains.Find("w1"), nullptr);
  EXPECT_FALSE(drains.Find("w1")->has_begun());
  EXPECT_FALSE(drains.ForgetGone());
}

v1::HostIdentity Host(const char* hostname, const char* node_id) {
  v1::HostIdentity host;
  host.set_hostname(hostname);
  host.set_node_id(node_id);
  return host;
}

TEST(Drains, AClosedNodeTakesNobodyUnderEitherOfItsNames) {
  Drains drains;
  EXPECT_TRUE(drains.empty());
  ASSERT_THAT(drains.CloseNode("n1", "operator alice"), IsOk());
  ASSERT_THAT(drains.CloseNode("id-2", "operator bob"), IsOk());
  EXPECT_FALSE(drains.empty());
  EXPECT_THAT(drains.CheckHost(Host("n1", "id-1")),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("node n1 is drained: operator alice"),
                             HasSubstr("coordctl drain n1 --lift"))));
  EXPECT_THAT(drains.CheckHost(Host("n2", "id-2")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("operator bob")));
  EXPECT_THAT(drains.CheckHost(Host("n3", "id-3")), IsOk());
  Drains restored;
  restored.Restore(drains.Record());
  EXPECT_THAT(restored.closed_nodes(), ElementsAre("id-2", "n1"));
  EXPECT_TRUE(restored.OpenNode("n1"));
  EXPECT_FALSE(restored.OpenNode("n1"));
  EXPECT_THAT(restored.CheckHost(Host("n1", "id-1")), IsOk());
}

TEST(Drains, OnlySoManyNodesAreClosed) {
  Drains drains;
  for (size_t i = 0; i < kMaxClosedNodes; ++i)
    ASSERT_THAT(drains.CloseNode(absl::StrCat("n", i), "operator alice"), IsOk());
  EXPECT_THAT(drains.CloseNode("one more", "operator alice"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("lift some")));
  EXPECT_THAT(drains.CloseNode("n7", "operator bob"), IsOk());
}

}  // namespace
}  // namespace coordd
