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
    limit.End("a");
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
  limit.End("a");
  EXPECT_TRUE(limit.Begin("a", now));
}

TEST(HandshakeLimit, KnowsABoundedNumberOfAddresses) {
  HandshakeLimit limit;
  int refused = 0;
  const int many = 3 * static_cast<int>(HandshakeLimit::kAddressesMax);
  for (int i = 0; i < many; ++i) {
    const std::string address = std::to_string(i);
    if (limit.Begin(address, kStart)) {
      limit.End(address);
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
