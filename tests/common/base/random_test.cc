#include "common/base/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace coordd {
namespace {

TEST(Random, GivesTheSameNumbersForTheSameSeed) {
  Random one(42), other(42);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(one.Next(), other.Next());
}

TEST(Random, DiffersBetweenProcessesByDefault) {
  EXPECT_NE(Random::FromSystem().Next(), Random::FromSystem().Next());
}

TEST(Random, StaysBelowItsBoundAndReachesEveryValue) {
  Random random(1);
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = random.Below(7);
    ASSERT_LT(value, 7u);
    seen.insert(value);
  }
  EXPECT_EQ(seen.size(), 7u);
}

TEST(Random, UniformIsInZeroToOne) {
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    const double value = random.Uniform();
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
  }
}

TEST(SecretHex, HasTwoDigitsPerByteAndIsNeverTheSame) {
  EXPECT_THAT(SecretHex(32), ::testing::MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(SecretHex(32).size(), 64u);
  EXPECT_NE(SecretHex(32), SecretHex(32));
}

}  // namespace
}  // namespace coordd
