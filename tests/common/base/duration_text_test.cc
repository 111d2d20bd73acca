#include "common/base/duration_text.h"

#include <gtest/gtest.h>

namespace coordd {
namespace {

TEST(DurationText, HasTheDigitsThatSomebodyReads) {
  EXPECT_EQ(DurationText(absl::Seconds(10) + absl::Microseconds(95)), "10s");
  EXPECT_EQ(DurationText(absl::Milliseconds(12345)), "12.3s");
  EXPECT_EQ(DurationText(absl::Microseconds(2345678)), "2.345s");
  EXPECT_EQ(DurationText(absl::Microseconds(176432)), "176ms");
  EXPECT_EQ(DurationText(absl::Nanoseconds(43219)), "43us");
  EXPECT_EQ(DurationText(absl::Milliseconds(3661234)), "1h1m1s");
  EXPECT_EQ(DurationText(absl::ZeroDuration()), "0");
  EXPECT_EQ(DurationText(-absl::Milliseconds(12345)), "-12.3s");
  EXPECT_EQ(DurationText(absl::InfiniteDuration()), "inf");
}

}  // namespace
}  // namespace coordd
