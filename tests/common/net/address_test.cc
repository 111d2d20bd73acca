#include "common/net/address.h"

#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coordd {
namespace {

using testing::HasSubstr;

TEST(ParseHostPort, TakesNamesAddressesAndBrackets) {
  EXPECT_EQ(*ParseHostPort("node3.cluster:29650"), (HostPort{"node3.cluster", 29650}));
  EXPECT_EQ(*ParseHostPort("127.0.0.1:0"), (HostPort{"127.0.0.1", 0}));
  EXPECT_EQ(*ParseHostPort("[::1]:65535"), (HostPort{"::1", 65535}));
  EXPECT_EQ(*ParseHostPort("my_host:1"), (HostPort{"my_host", 1}));
}

TEST(ParseHostPort, WritesWhatItReads) {
  for (const char* text : {"localhost:1", "10.0.0.7:29650", "[fe80::1]:80"})
    EXPECT_EQ(ParseHostPort(text)->ToString(), text);
}

TEST(ParsePortRange, TakesTwoEndsOrOnePort) {
  EXPECT_EQ(*ParsePortRange("20000-20099"), (PortRange{20000, 20099}));
  EXPECT_EQ(*ParsePortRange("7400"), (PortRange{7400, 7400}));
  EXPECT_EQ((PortRange{5, 9}).size(), 5);
  EXPECT_EQ((PortRange{5, 9}).ToString(), "5-9");
  for (const char* text : {"", "-", "9-5", "0-5", "1-65536", "a-b", "1-2-3", " 1-2", "+1-2", "1-"})
    EXPECT_FALSE(ParsePortRange(text).ok()) << text;
}

TEST(ParseHostPort, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "has no port"},       {"host", "has no port"},
      {":1", "has no host"},     {"host:", "not a number from 0 to 65535"},
      {"host:65536", "65535"},   {"host:-1", "65535"},
      {"host:+1", "65535"},      {"host: 1", "65535"},
      {"host:1x", "65535"},      {"::1:80", "more than one colon"},
      {"[::1]", "has no port"},  {"[::1", "has no ]"},
      {"[host]:1", "no IPv6"},   {"ho st:1", "character in its host"},
      {"http://h:1", "is a URL"}};
  for (const auto& [text, why] : cases) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(why)) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("expected HOST:PORT")) << text;
  }
}

TEST(ParseHostPort, DoesNotRepeatAHugeTextInItsError) {
  const std::string huge(1 << 20, 'a');
  EXPECT_LT(ParseHostPort(huge).status().message().size(), 500u);
  EXPECT_FALSE(ParseHostPort(huge + ":1").ok());
}

TEST(IsLoopback, KnowsWhatOtherMachinesCannotReach) {
  for (const char* host :
       {"localhost", "LOCALHOST", "127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "localhost.evil", "", "127"})
    EXPECT_FALSE(IsLoopback(host)) << host;
}

TEST(LocalAddressTowards, IsLoopbackTowardsLoopback) {
  EXPECT_EQ(*LocalAddressTowards({"127.0.0.1", 29650}), "127.0.0.1");
  EXPECT_EQ(*LocalAddressTowards({"127.0.0.1", 0}), "127.0.0.1");
  EXPECT_TRUE(IsLoopback(*LocalAddressTowards({"localhost", 1})));
}

TEST(LocalAddressTowards, NamesAHostThatDoesNotResolve) {
  const auto result = LocalAddressTowards({"no-such-host.invalid", 1});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("no-such-host.invalid"));
}

TEST(InterfaceOf, FindsTheLoopbackInterface) {
  EXPECT_EQ(*InterfaceOf("127.0.0.1"), "lo");
  EXPECT_EQ(InterfaceOf("192.0.2.1").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace coordd
