#include "common/base/log_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coordd {
namespace {

using testing::HasSubstr;

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(LogLimit, PassesABurstAndThenOneInAnInterval) {
  LogLimit limit;
  for (int i = 0; i < LogLimit::kBurst; ++i) EXPECT_EQ(limit.Pass(kStart), "");
  for (int i = 0; i < 7; ++i) EXPECT_EQ(limit.Pass(kStart), std::nullopt);
  EXPECT_THAT(*limit.Pass(kStart + LogLimit::kInterval), HasSubstr("7 more"));
  EXPECT_EQ(limit.Pass(kStart + LogLimit::kInterval), std::nullopt);
  EXPECT_THAT(*limit.Pass(kStart + 2 * LogLimit::kInterval), HasSubstr("1 more"));
}

TEST(LogLimit, ABurstIsPossibleAgainAfterAWhile) {
  LogLimit limit;
  while (limit.Pass(kStart).has_value()) {
  }
  const absl::Time later = kStart + 2 * LogLimit::kBurst * LogLimit::kInterval;
  int passed = 0;
  while (limit.Pass(later).has_value()) ++passed;
  EXPECT_EQ(passed, LogLimit::kBurst);
}

TEST(LogLimit, IsUnusedWhileItWouldPassAndLeaveOutAsANewOne) {
  LogLimit limit;
  EXPECT_TRUE(limit.IsUnused(kStart));
  limit.Pass(kStart);
  EXPECT_FALSE(limit.IsUnused(kStart));
  EXPECT_TRUE(limit.IsUnused(kStart + LogLimit::kInterval));
  while (limit.Pass(kStart).has_value()) {
  }
  // It has something to tell.
  EXPECT_FALSE(limit.IsUnused(kStart + 2 * LogLimit::kBurst * LogLimit::kInterval));
}

}  // namespace
}  // namespace coordd
