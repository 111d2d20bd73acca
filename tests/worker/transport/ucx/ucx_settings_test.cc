#include "worker/transport/ucx/ucx_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace coordd {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::IsSupersetOf;
using testing::Key;
using testing::Not;
using testing::Pair;

constexpr UcxVersion kDebians = {1, 13, 1}, kFirstWithPrefix = {1, 17, 0}, kNewest = {1, 22, 0};

std::map<std::string, std::string> Values(const UcxVersion& version,
                                          const UcxTransportOptions& options) {
  std::map<std::string, std::string> values;
  for (const UcxSetting& setting : UcxSettings(version, options, "eth0"))
    values[setting.name] = setting.value;
  return values;
}

UcxTransportOptions Options(Environment environment) {
  return {.local_address = "10.0.0.5",
          .environment = std::move(environment),
          .ports = PortRange{20000, 20099}};
}

TEST(UcxSettings, NameTheTransportWhereThatVersionDoes) {
  EXPECT_THAT(Values(kDebians, Options({})),
              AllOf(IsSupersetOf({Pair("TX_SEG_SIZE", "260k"), Pair("RX_SEG_SIZE", "260k"),
                                  Pair("PORT_RANGE", "20000-20099")}),
                    Not(Contains(Key(testing::StartsWith("TCP_"))))));
  for (const UcxVersion& version : {kFirstWithPrefix, kNewest}) {
    EXPECT_THAT(
        Values(version, Options({})),
        AllOf(IsSupersetOf({Pair("TCP_TX_SEG_SIZE", "260k"), Pair("TCP_RX_SEG_SIZE", "260k"),
                            Pair("TCP_PORT_RANGE", "20000-20099")}),
              Not(Contains(Key("TX_SEG_SIZE"))), Not(Contains(Key("PORT_RANGE")))));
  }
}

TEST(UcxSettings, LeaveTheUsersAlone) {
  for (const UcxVersion& version : {kDebians, kNewest}) {
    EXPECT_THAT(Values(version, Options({{"UCX_TCP_TX_SEG_SIZE", "8k"},
                                         {"UCX_TCP_PORT_RANGE", "1-2"},
                                         {"UCX_KEEPALIVE_INTERVAL", "20s"}})),
                AllOf(Not(Contains(Key(testing::HasSubstr("TX_SEG_SIZE")))),
                      Not(Contains(Key(testing::HasSubstr("PORT_RANGE")))),
                      Not(Contains(Key("KEEPALIVE_INTERVAL"))), Contains(Pair("TLS", "^sm")),
                      Contains(Pair("NET_DEVICES", "eth0"))));
  }
}

TEST(UcxSettings, OfTcpAreThoseOfANetworkThatIsTcpForCertain) {
  EXPECT_THAT(Values(kNewest, Options({{"UCX_TLS", "rc"}})),
              AllOf(Not(Contains(Key("TCP_TX_SEG_SIZE"))), Not(Contains(Key("ZCOPY_THRESH")))));
}

TEST(UcxSettings, LeaveTcpOutWhereItIsForRdma) {
  UcxTransportOptions options = Options({});
  options.only_rdma = true;
  EXPECT_FALSE(KnowsTcp(options));
  for (const UcxVersion& version : {kDebians, kNewest}) {
    EXPECT_THAT(Values(version, options),
                AllOf(Contains(Pair("TLS", "^tcp,sm")), Not(Contains(Key("NET_DEVICES"))),
                      Not(Contains(Key("ZCOPY_THRESH")))));
  }
}

TEST(UcxSettings, SayWhatTheyAreNeededFor) {
  for (const UcxSetting& setting : UcxSettings(kNewest, Options({}), "eth0")) {
    const bool is_needed =
        setting.name == "TLS" || setting.name == "NET_DEVICES" || setting.name == "TCP_PORT_RANGE";
    EXPECT_EQ(!setting.needed_to.empty(), is_needed) << setting.name;
  }
}

TEST(ReachesNobodyOverLoopback, IsOneMinorVersion) {
  EXPECT_TRUE(ReachesNobodyOverLoopback({1, 20, 0}));
  EXPECT_TRUE(ReachesNobodyOverLoopback({1, 20, 1}));
  EXPECT_FALSE(ReachesNobodyOverLoopback({1, 19, 0}));
  EXPECT_FALSE(ReachesNobodyOverLoopback({1, 21, 0}));
}

}  // namespace
}  // namespace coordd
