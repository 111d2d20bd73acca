// Who is the cause of a run's end, and how often a slot is tried again.
#include "client/coordrun/plan/run_blame.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "client/coordrun/plan/restart_budget.h"
#include "tests/support/start_time.h"

namespace coordd {
namespace {

const ProcessEnd kByItself{.code = 1};
const ProcessEnd kBySignal{.code = 0, .signal = SIGKILL};
const ProcessEnd kByAbort{.code = 0, .signal = SIGABRT};

TEST(RunBlame, ADeathByASignalTakesThePlaceOfAnExitWithinTheWindow) {
  RunBlame blame;
  blame.Fail(2, kByItself, kStart);
  blame.FailToo(3, kByAbort, kStart);
  EXPECT_EQ(blame.worker(), 2);
  blame.FailToo(1, kBySignal, kStart + RunBlame::kWindow);
  EXPECT_EQ(blame.worker(), 1);
  blame.FailToo(0, kBySignal, kStart + RunBlame::kWindow);
  EXPECT_EQ(blame.worker(), 1) << "the first of those who were killed";
}

TEST(RunBlame, LateOrBehindTheEndNothingChanges) {
  RunBlame late;
  late.Fail(2, kByItself, kStart);
  late.FailToo(1, kBySignal, kStart + RunBlame::kWindow + absl::Nanoseconds(1));
  EXPECT_EQ(late.worker(), 2);
  RunBlame ended;
  ended.Fail(2, kByItself, kStart);
  EXPECT_EQ(ended.NextDeadline(), kStart + RunBlame::kWindow);
  ended.Close();
  ended.FailToo(1, kBySignal, kStart);
  EXPECT_EQ(ended.worker(), 2);
  EXPECT_EQ(ended.NextDeadline(), absl::InfiniteFuture());
}

TEST(RunBlame, IsFinalWhenTheWindowIsOverOrNobodyHasFailed) {
  RunBlame nobody;
  nobody.Tick(kStart);
  EXPECT_TRUE(nobody.is_final());
  RunBlame blame;
  blame.Fail(2, kByItself, kStart);
  blame.Tick(kStart);
  EXPECT_FALSE(blame.is_final());
  blame.Tick(kStart + RunBlame::kWindow);
  EXPECT_TRUE(blame.is_final());
}

TEST(RunBlame, WhatCoorddHasSeenCountsMoreThanTheOrderOfEnds) {
  RunBlame blame;
  blame.Learn(1, "ValueError: bad batch");
  EXPECT_FALSE(blame.worker().has_value()) << "nobody has failed";
  blame.Fail(2, kByItself, kStart);
  blame.Learn(1, "ValueError: bad batch");
  EXPECT_EQ(blame.worker(), 1);
  EXPECT_EQ(blame.says(), "ValueError: bad batch");
  EXPECT_TRUE(blame.is_final());
  RunBlame accused;
  accused.Accuse(0, "ended early", kStart);
  accused.Learn(1, "ValueError: bad batch");
  accused.FailToo(1, kBySignal, kStart);
  EXPECT_EQ(accused.worker(), 0);
  EXPECT_EQ(accused.reason(), "ended early");
}

RunOptions Restarting(int32_t most) {
  RunOptions options;
  options.max_restarts = most;
  options.cooldown_min = absl::Seconds(1);
  options.cooldown_max = absl::Seconds(3);
  return options;
}

TEST(RestartBudget, FailuresInARowDoubleTheWaitUpToTheLongest) {
  RestartBudget budget(Restarting(5));
  int32_t strikes = 0;
  EXPECT_EQ(budget.Take(absl::Seconds(1), strikes), absl::Seconds(1));
  EXPECT_EQ(budget.Take(absl::Seconds(1), strikes), absl::Seconds(2));
  EXPECT_EQ(budget.Take(absl::Seconds(1), strikes), absl::Seconds(3));
  EXPECT_EQ(budget.Take(RestartBudget::kForgivenAfter, strikes), absl::Seconds(1));
}

TEST(RestartBudget, IsOfTheWholeRun) {
  RestartBudget budget(Restarting(1));
  int32_t one = 0, other = 0;
  EXPECT_TRUE(budget.Take(absl::Seconds(1), one).has_value());
  EXPECT_FALSE(budget.Take(absl::Seconds(1), other).has_value());
  EXPECT_EQ(other, 0);
  RunOptions changing = Restarting(0);
  changing.discovery_script = "./hosts";
  RestartBudget endless(changing);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(endless.Take(absl::Seconds(1), one).has_value());
}

}  // namespace
}  // namespace coordd
