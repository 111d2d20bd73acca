#include "server/service/metrics_address_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/net/address.h"

namespace coordd {
namespace {

constexpr char kNode[] = "ipv4:192.0.2.7:4711";
constexpr char kHere[] = "ipv4:127.0.0.1:4711";

TEST(MetricsAddressRule, AWorkerServesWhereItComesFrom) {
  EXPECT_TRUE(MetricsAddressRule::IsOf(kNode, "192.0.2.7:9401"));
  EXPECT_FALSE(MetricsAddressRule::IsOf(kNode, "192.0.2.8:9401"));
  EXPECT_FALSE(MetricsAddressRule::IsOf(kNode, "127.0.0.1:9401"));
  EXPECT_FALSE(MetricsAddressRule::IsOf(kNode, "node7:9401")) << "a name may become any address";
  EXPECT_TRUE(MetricsAddressRule::IsOf("ipv6:%5B2001:db8::7%5D:4711", "[2001:db8::7]:9401"));
  EXPECT_FALSE(MetricsAddressRule::IsOf("ipv6:%5B2001:db8::7%5D:4711", "[2001:db8::8]:9401"));
}

TEST(MetricsAddressRule, ARelayServesThemWhereItComesFrom) {
  EXPECT_TRUE(MetricsAddressRule::IsOf(kNode, "192.0.2.7:9401/node"));
  EXPECT_FALSE(MetricsAddressRule::IsOf(kNode, "192.0.2.8:9401/node"));
  EXPECT_FALSE(MetricsAddressRule::IsOf(kNode, "192.0.2.7:9401/other"));
}

TEST(MetricsAddressRule, OnThisMachineEachOfItsAddressesWillDo) {
  EXPECT_TRUE(MetricsAddressRule::IsOf(kHere, "127.0.0.1:9401"));
  EXPECT_TRUE(MetricsAddressRule::IsOf(kHere, "127.0.0.2:9401"));
  EXPECT_TRUE(MetricsAddressRule::IsOf(kHere, "[::1]:9401"));
  EXPECT_FALSE(MetricsAddressRule::IsOf(kHere, "192.0.2.7:9401"));
  const auto own = LocalAddressTowards({"192.0.2.7", 9});
  if (!own.ok()) return;  // this machine has no others
  EXPECT_TRUE(MetricsAddressRule::IsOf(kHere, HostPort{*own, 9401}.ToString()));
}

TEST(MetricsAddressRule, AnotherIsNotListedAndTheWorkerIsIn) {
  v1::Join join;
  join.set_job("train");
  join.set_metrics_address("192.0.2.8:80");
  MetricsAddressRule(/*any=*/false, Clock::Real()).Apply(kNode, join);
  EXPECT_EQ(join.metrics_address(), "");
  join.set_metrics_address("192.0.2.7:9401");
  MetricsAddressRule(/*any=*/false, Clock::Real()).Apply(kNode, join);
  EXPECT_EQ(join.metrics_address(), "192.0.2.7:9401");
}

TEST(MetricsAddressRule, AnyIsIfItIsAskedFor) {
  v1::Join join;
  join.set_metrics_address("192.0.2.8:80");
  MetricsAddressRule(/*any=*/true, Clock::Real()).Apply(kNode, join);
  EXPECT_EQ(join.metrics_address(), "192.0.2.8:80");
}

}  // namespace
}  // namespace coordd
