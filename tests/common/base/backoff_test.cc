#include "common/base/backoff.h"

#include <gtest/gtest.h>

namespace coordd {
namespace {

constexpr BackoffOptions kOptions{.initial = absl::Milliseconds(50), .max = absl::Seconds(2)};

TEST(Backoff, StaysBetweenHalfTheCeilingAndTheCeilingWhichDoublesUpToMax) {
  Random random(1);
  Backoff backoff(kOptions, random);
  for (int ceiling_ms : {50, 100, 200, 400, 800, 1600, 2000, 2000, 2000}) {
    const absl::Duration delay = backoff.Next();
    EXPECT_GE(delay, absl::Milliseconds(ceiling_ms) / 2) << ceiling_ms;
    EXPECT_LE(delay, absl::Milliseconds(ceiling_ms)) << ceiling_ms;
  }
}

TEST(Backoff, StartsAgainAfterReset) {
  Random random(2);
  Backoff backoff(kOptions, random);
  for (int i = 0; i < 10; ++i) backoff.Next();
  backoff.Reset();
  EXPECT_LE(backoff.Next(), kOptions.initial);
}

TEST(Backoff, SpreadsThoseThatStartTogether) {
  Random one(1), other(2);
  Backoff first(kOptions, one), second(kOptions, other);
  EXPECT_NE(first.Next(), second.Next());
}

TEST(Backoff, GivesTheSameDelaysForTheSameSeed) {
  Random one(7), other(7);
  Backoff first(kOptions, one), second(kOptions, other);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(first.Next(), second.Next());
}

}  // namespace
}  // namespace coordd
