#include "common/net/handshake_limit.h"

#include <gtest/gtest.h>

#include <string>

namespace coordd {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

TEST(HandshakeLimit, LetsAnAddressBeginSoManyASecond) {
  HandshakeLimit limit;
  for (int i = 0; i < HandshakeLimit::kPerSecond; ++i) {
    EXPECT_TRUE(limit.Begin("a", kStart));
    limit.Left("a");
  }
  EXPECT_FALSE(limit.Begin("a", kStart + absl::Milliseconds(999)));
  EXPECT_TRUE(limit.Begin("b", kStart + absl::Milliseconds(999)));
  EXPECT_TRUE(limit.Begin("a", kStart + absl::Seconds(1)));
}

TEST(HandshakeLimit, LetsAnAddressHaveSoManyAtOnce) {
  HandshakeLimit limit;
  absl::Time now = kStart;
  for (int i = 0; i < HandshakeLimit::kAtOnce; ++i, now += absl::Seconds(1))
    EXPECT_TRUE(limit.Begin("a", now));
  EXPECT_FALSE(limit.Begin("a", now));
  EXPECT_TRUE(limit.Begin("b", now));
  limit.Left("a");
  EXPECT_TRUE(limit.Begin("a", now));
}

TEST(HandshakeLimit, LetsWhoGoesThroughWithThemBeginMore) {
  HandshakeLimit limit;
  int let_in = 0;
  for (int i = 0; i < 2 * HandshakeLimit::kFinishedPerSecond && limit.Begin("nat", kStart); ++i) {
    limit.Finished("nat");
    ++let_in;
  }
  EXPECT_EQ(let_in, HandshakeLimit::kFinishedPerSecond);
  // Those of others of that address that are begun and left count as before.
  const absl::Time later = kStart + absl::Seconds(1);
  for (int i = 0; i < HandshakeLimit::kPerSecond; ++i) {
    EXPECT_TRUE(limit.Begin("nat", later));
    limit.Left("nat");
  }
  EXPECT_FALSE(limit.Begin("nat", later));
}

TEST(HandshakeLimit, KnowsABoundedNumberOfAddresses) {
  HandshakeLimit limit;
  int refused = 0;
  const int many = 3 * static_cast<int>(HandshakeLimit::kAddressesMax);
  for (int i = 0; i < many; ++i) {
    const std::string address = std::to_string(i);
    if (limit.Begin(address, kStart)) {
      limit.Left(address);
    } else {
      ++refused;
    }
  }
  EXPECT_LE(limit.addresses(), HandshakeLimit::kAddressesMax + 1);
  EXPECT_EQ(refused,
            many - static_cast<int>(HandshakeLimit::kAddressesMax) - HandshakeLimit::kPerSecond);
  EXPECT_TRUE(limit.Begin("a", kStart + absl::Seconds(1)));
  EXPECT_EQ(limit.addresses(), 2u);  // begun within this second, and open
}

}  // namespace
}  // namespace coordd
