#include "tests/sim/recovery_sim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

constexpr uint64_t kSeeds = 300;

TEST(RecoverySim, SurvivorsGetEveryResultOnceAndTheSame) {
  int64_t generations = 0, held = 0, again = 0, scheduled = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RecoverySimOptions options;
    options.workers = 2 + static_cast<int32_t>(seed % 4);
    options.kills = 1 + static_cast<int32_t>(seed / 4 % 3);
    RecoverySim sim(seed, options);
    ASSERT_THAT(sim.Run(), IsOk()) << "seed " << seed;
    generations += sim.generations();
    held += sim.held();
    again += sim.again();
    scheduled += sim.scheduled_batches();
  }
  // That it got anywhere at all.
  EXPECT_GT(generations, static_cast<int64_t>(3 * kSeeds / 2));
  EXPECT_GT(held, 20);
  EXPECT_GT(again, 200);
  EXPECT_GT(scheduled, 1000);
}

TEST(RecoverySim, CoorddMayDieWhileTheyDoSo) {
  int64_t crashes = 0, resumed = 0, over = 0, told_again = 0, held = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RecoverySimOptions options;
    options.workers = 2 + static_cast<int32_t>(seed % 4);
    options.kills = 1 + static_cast<int32_t>(seed / 4 % 3);
    options.crashes = 1 + static_cast<int32_t>(seed / 12 % 3);
    RecoverySim sim(seed, options);
    ASSERT_THAT(sim.Run(), IsOk()) << "seed " << seed;
    crashes += sim.crashes();
    resumed += sim.resumed();
    over += sim.over();
    told_again += sim.told_again();
    held += sim.held();
  }
  EXPECT_GT(crashes, static_cast<int64_t>(kSeeds));
  EXPECT_GT(resumed, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(over, 100);
  EXPECT_GT(told_again, 30);
  EXPECT_GT(held, 10);
}

TEST(RecoverySim, MembersMayChangeWhileCoorddDies) {
  int64_t changes = 0, crashes = 0, generations = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RecoverySimOptions options;
    options.workers = 2 + static_cast<int32_t>(seed % 4);
    options.kills = static_cast<int32_t>(seed / 4 % 2);
    options.crashes = static_cast<int32_t>(seed / 8 % 3);
    options.changes = 1 + static_cast<int32_t>(seed / 24 % 2);
    RecoverySim sim(seed, options);
    ASSERT_THAT(sim.Run(), IsOk()) << "seed " << seed;
    changes += sim.changes();
    crashes += sim.crashes();
    generations += sim.generations();
  }
  EXPECT_GT(changes, static_cast<int64_t>(kSeeds));
  EXPECT_GT(crashes, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(generations, static_cast<int64_t>(2 * kSeeds));
}

TEST(RecoverySim, CoorddMaySleepAndDie) {
  int64_t suspended = 0, resumed = 0, crashes = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RecoverySimOptions options;
    options.workers = 2 + static_cast<int32_t>(seed % 4);
    options.kills = static_cast<int32_t>(seed / 4 % 2);
    options.crashes = static_cast<int32_t>(seed / 8 % 2);
    options.changes = static_cast<int32_t>(seed / 16 % 2);
    options.dozes = 1 + static_cast<int32_t>(seed / 32 % 3);
    RecoverySim sim(seed, options);
    ASSERT_THAT(sim.Run(), IsOk()) << "seed " << seed;
    suspended += sim.suspended();
    resumed += sim.resumed();
    crashes += sim.crashes();
  }
  EXPECT_GT(suspended, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(resumed, static_cast<int64_t>(kSeeds));
  EXPECT_GT(crashes, static_cast<int64_t>(kSeeds / 4));
}

TEST(RecoverySim, WhoIsToLeaveDoesAtAnyMomentAndNobodyElseIsConcerned) {
  int64_t drained = 0, evicted = 0, crashes = 0, generations = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RecoverySimOptions options;
    options.workers = 3 + static_cast<int32_t>(seed % 3);
    options.kills = static_cast<int32_t>(seed / 3 % 2);
    options.crashes = static_cast<int32_t>(seed / 6 % 3);
    options.changes = static_cast<int32_t>(seed / 18 % 2);
    options.drains = 1 + static_cast<int32_t>(seed / 36 % 2);
    options.evictions = static_cast<int32_t>(seed / 72 % 2);
    RecoverySim sim(seed, options);
    ASSERT_THAT(sim.Run(), IsOk()) << "seed " << seed;
    drained += sim.drained();
    evicted += sim.evicted();
    crashes += sim.crashes();
    generations += sim.generations();
  }
  EXPECT_GT(drained, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(evicted, static_cast<int64_t>(kSeeds / 10));
  EXPECT_GT(crashes, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(generations, static_cast<int64_t>(2 * kSeeds));
}

// Whether one of the seeds notices the mistake.
bool Noticed(RecoveryBug bug, int32_t crashes = 0, int32_t changes = 0, int32_t drains = 0) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RecoverySimOptions options;
    options.kills = 2;
    options.crashes = crashes;
    options.changes = changes;
    options.drains = drains;
    options.bug = bug;
    if (!RecoverySim(seed, options).Run().ok()) return true;
  }
  return false;
}

TEST(RecoverySim, NoticesASurvivorThatSkipsARepair) {
  EXPECT_TRUE(Noticed(RecoveryBug::kSkipsRepair));
}

TEST(RecoverySim, NoticesARepairPlanThatDiesWithCoordd) {
  EXPECT_TRUE(Noticed(RecoveryBug::kPlanIsNotStored, /*crashes=*/2));
}

TEST(RecoverySim, NoticesAChangeOfMembersThatIsNotAskedForAgain) {
  EXPECT_TRUE(Noticed(RecoveryBug::kChangeNotAskedAgain, /*crashes=*/2, /*changes=*/2));
}

TEST(RecoverySim, NoticesADrainThatDiesWithCoordd) {
  EXPECT_TRUE(Noticed(RecoveryBug::kDrainNotStored, /*crashes=*/2, /*changes=*/0, /*drains=*/2));
}

TEST(RecoverySim, NoticesABufferThatIsReusedTooEarly) {
  EXPECT_TRUE(Noticed(RecoveryBug::kBufferReusedTooEarly));
}

}  // namespace
}  // namespace coordd
