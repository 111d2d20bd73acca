#include "server/job/end_rule.h"
#include "tests/support/start_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coordd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(EndRule, LetsADaemonRunForEver) {
  EndRule rule({}, kStart);
  EXPECT_THAT(rule.Look(kStart + absl::Hours(1000), 0, false), IsEmpty());
  EXPECT_EQ(rule.NextLook(), absl::InfiniteFuture());
}

TEST(EndRule, EndsOnceIdleForLongEnough) {
  EndRule rule({.idle = absl::Seconds(60)}, kStart);
  EXPECT_THAT(rule.Look(kStart + absl::Seconds(59), 0, false), IsEmpty());
  EXPECT_THAT(rule.Look(kStart + absl::Seconds(60), 1, false), IsEmpty());
  EXPECT_THAT(rule.Look(kStart + absl::Seconds(200), 0, false), IsEmpty());
  EXPECT_THAT(rule.Look(kStart + absl::Seconds(259), 0, false), IsEmpty());
  EXPECT_THAT(rule.Look(kStart + absl::Seconds(260), 0, false), HasSubstr("no worker for 1m"));
  EXPECT_LE(rule.NextLook(), kStart + absl::Seconds(262));
}

TEST(EndRule, WaitsForTheGoodbyesOnceItsOwnerHasGone) {
  EndRule rule({.drain = absl::Seconds(4)}, kStart);
  EXPECT_THAT(rule.Look(kStart, 3, true), IsEmpty());
  EXPECT_THAT(rule.Look(kStart + absl::Seconds(3), 1, true), IsEmpty());
  EXPECT_LT(rule.NextLook(), kStart + absl::Seconds(3.1));
  EXPECT_THAT(rule.Look(kStart + absl::Seconds(3.1), 0, true), HasSubstr("no worker is left"));
}

TEST(EndRule, DoesNotWaitForLong) {
  EndRule rule({.drain = absl::Seconds(4)}, kStart);
  EXPECT_THAT(rule.Look(kStart, 3, true), IsEmpty());
  EXPECT_THAT(rule.Look(kStart + absl::Seconds(4), 3, true), HasSubstr("ended 4s ago"));
}

}  // namespace
}  // namespace coordd
