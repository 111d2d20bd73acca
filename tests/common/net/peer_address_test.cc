#include "common/net/peer_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

namespace coordd {
namespace {

PeerAddress OfV6(const char* text) {
  sockaddr_storage storage = {};
  auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(80);
  EXPECT_EQ(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
  return PeerAddressOf(storage);
}

TEST(PeerAddress, OfIPv4IsCountedByItself) {
  sockaddr_storage storage = {};
  auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
  v4.sin_family = AF_INET;
  v4.sin_port = htons(41234);
  inet_pton(AF_INET, "10.0.0.7", &v4.sin_addr);
  EXPECT_EQ(PeerAddressOf(storage).text, "10.0.0.7:41234");
  EXPECT_EQ(PeerAddressOf(storage).block, "10.0.0.7");
  EXPECT_EQ(OfV6("::ffff:10.0.0.7").block, "10.0.0.7");
  EXPECT_EQ(OfV6("::ffff:10.0.0.7").text, "10.0.0.7:80");
}

TEST(PeerAddress, OfIPv6IsCountedWithItsNetwork) {
  EXPECT_EQ(OfV6("fd00::7").text, "[fd00::7]:80");
  EXPECT_EQ(OfV6("fd00::7").block, "fd00::/64");
  EXPECT_EQ(OfV6("fd00::7").block, OfV6("fd00::1:2:3:4").block);
  EXPECT_NE(OfV6("fd00::7").block, OfV6("fd00:0:0:1::7").block);
}

}  // namespace
}  // namespace coordd
