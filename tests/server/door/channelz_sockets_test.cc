#include "server/door/channelz_sockets.h"

#include <gtest/gtest.h>

namespace coordd {
namespace {

TEST(PeerOfSocketName, IsTheOtherSidesAddress) {
  EXPECT_EQ(PeerOfSocketName("chttp2 ipv4:10.0.0.1:4242"), "10.0.0.1:4242");
  EXPECT_EQ(PeerOfSocketName("chttp2 ipv6:%5B::1%5D:4242"), "[::1]:4242");
  EXPECT_EQ(PeerOfSocketName("chttp2 ipv6:[2001:db8::7]:1"), "[2001:db8::7]:1");
  EXPECT_EQ(PeerOfSocketName("chttp2 unix-abstract:coordd-12ab"), "unix-abstract:coordd-12ab");
  EXPECT_EQ(PeerOfSocketName("chttp2 ipv6:%5Bfe80::1%25eth0%5D:4242"), "[fe80::1]:4242");
}

TEST(PeerOfSocketName, IsEmptyWhereThereIsNone) {
  EXPECT_EQ(PeerOfSocketName(""), "");
  EXPECT_EQ(PeerOfSocketName("chttp2 unix:/tmp/x"), "");
}

TEST(CallsOfSocketJson, AreThoseThatBeganAndDidNotEnd) {
  EXPECT_EQ(CallsOfSocketJson(R"({"socket":{"data":{"streamsStarted":"12","streamsSucceeded":"3",)"
                              R"("streamsFailed":"4","keepAlivesSent":"1"}}})"),
            5);
  EXPECT_EQ(CallsOfSocketJson(R"({"socket":{"data":{"streamsStarted":"1000"}}})"), 1000);
}

// channelz counts without a lock: an end may be counted before its beginning.
TEST(CallsOfSocketJson, AreNeverFewerThanNone) {
  EXPECT_EQ(CallsOfSocketJson(R"({"socket":{"data":{"streamsFailed":"1"}}})"), 0);
}

TEST(CallsOfSocketJson, AreNoneWhereNothingIsTold) {
  for (const char* text :
       {"", "{", "[]", "7", "{}", R"({"socket":7})", R"({"socket":{}})",
        R"({"socket":{"data":[]}})", R"({"socket":{"data":{"streamsStarted":12}}})"})
    EXPECT_EQ(CallsOfSocketJson(text), 0) << text;
}

}  // namespace
}  // namespace coordd
