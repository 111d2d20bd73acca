#include "server/door/made_transports.h"

#include <gtest/gtest.h>

namespace coordd {
namespace {

TEST(PeerOfSocketName, IsTheOtherSidesAddress) {
  EXPECT_EQ(PeerOfSocketName("chttp2 ipv4:10.0.0.1:4242"), "10.0.0.1:4242");
  EXPECT_EQ(PeerOfSocketName("chttp2 ipv6:%5B::1%5D:4242"), "[::1]:4242");
  EXPECT_EQ(PeerOfSocketName("chttp2 ipv6:[2001:db8::7]:1"), "[2001:db8::7]:1");
  EXPECT_EQ(PeerOfSocketName("chttp2 ipv6:%5Bfe80::1%25eth0%5D:4242"), "[fe80::1]:4242");
}

TEST(PeerOfSocketName, IsEmptyWhereThereIsNone) {
  EXPECT_EQ(PeerOfSocketName(""), "");
  EXPECT_EQ(PeerOfSocketName("chttp2 unix:/tmp/x"), "");
}

}  // namespace
}  // namespace coordd
