// When coordd is asked about those who are left, and how often it is started again.
#include "client/coordrun/plan/early_look.h"

#include <gtest/gtest.h>

#include "client/coordrun/plan/quick_deaths.h"
#include "tests/support/start_time.h"

namespace coordd {
namespace {

TEST(EarlyLook, OnceAfterAnEnd) {
  EarlyLook look;
  EXPECT_EQ(look.NextDeadline(), absl::InfiniteFuture());
  look.Ended(kStart);
  look.Ended(kStart + absl::Milliseconds(500));
  EXPECT_FALSE(look.IsDue(kStart));
  EXPECT_TRUE(look.IsDue(kStart + EarlyLook::kWait)) << "the first end counts";
  look.Look(/*again=*/false, kStart + EarlyLook::kWait);
  EXPECT_EQ(look.NextDeadline(), absl::InfiniteFuture());
}

TEST(EarlyLook, LaterAndLaterAsLongAsItTellsNothing) {
  EarlyLook look;
  look.Ended(kStart);
  absl::Time now = look.NextDeadline();
  absl::Duration last = absl::ZeroDuration();
  for (int i = 0; i < 20; ++i) {
    look.Look(/*again=*/false, now);
    look.ToldNothing(now);
    EXPECT_GE(look.NextDeadline() - now, last);
    last = look.NextDeadline() - now;
    now = look.NextDeadline();
  }
  EXPECT_EQ(last, EarlyLook::kLongestWait);
  look.Ended(now);
  look.Look(/*again=*/true, now);
  EXPECT_EQ(look.NextDeadline(), now + EarlyLook::kWait);
}

TEST(QuickDeaths, OneAfterTheOtherAreTooMany) {
  QuickDeaths deaths;
  deaths.Died(kStart);
  EXPECT_EQ(deaths.count(), 0) << "it had run since before the run";
  for (int i = 0; i < QuickDeaths::kMost; ++i) {
    EXPECT_FALSE(deaths.too_many());
    deaths.Started(kStart);
    deaths.Died(kStart + absl::Milliseconds(1));
  }
  EXPECT_TRUE(deaths.too_many());
  deaths.Started(kStart);
  deaths.Died(kStart + QuickDeaths::kQuick);
  EXPECT_FALSE(deaths.too_many()) << "one that had run for a while forgives the others";
  for (int i = 0; i < QuickDeaths::kMost; ++i) deaths.DiedAtOnce();
  EXPECT_TRUE(deaths.too_many());
}

}  // namespace
}  // namespace coordd
