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

// Whether one of the seeds notices the mistake.
bool Noticed(RecoveryBug bug) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RecoverySimOptions options;
    options.kills = 2;
    options.bug = bug;
    if (!RecoverySim(seed, options).Run().ok()) return true;
  }
  return false;
}

TEST(RecoverySim, NoticesASurvivorThatSkipsARepair) {
  EXPECT_TRUE(Noticed(RecoveryBug::kSkipsRepair));
}

TEST(RecoverySim, NoticesABufferThatIsReusedTooEarly) {
  EXPECT_TRUE(Noticed(RecoveryBug::kBufferReusedTooEarly));
}

}  // namespace
}  // namespace coordd
