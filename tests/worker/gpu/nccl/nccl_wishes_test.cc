#include "worker/gpu/nccl/nccl_wishes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coordd {
namespace {

using testing::HasSubstr;

TEST(NcclWishesTest, AreMembersOfNcclsConfiguration) {
  const auto wishes =
      NcclWishes::Parse("minCTAs=4, maxCTAs=16,cgaClusterSize=2,netName=Socket,trafficClass=105,");
  ASSERT_TRUE(wishes.ok()) << wishes.status();
  for (const int version : {22809, 22105}) {
    NcclConfig config;
    wishes->PutInto(config, version);
    EXPECT_EQ(config.min_ctas, 4);
    EXPECT_EQ(config.max_ctas, 16);
    EXPECT_EQ(config.cga_cluster_size, 2);
    EXPECT_STREQ(config.net_name, "Socket");
    const bool knows = version >= NcclWishes::kVersionTrafficClass;
    EXPECT_EQ(config.traffic_class, knows ? 105 : NcclConfig::kUndefined);
    EXPECT_EQ(wishes->UnknownTo(version), knows ? "" : "trafficClass");
  }
}

TEST(NcclWishesTest, WithoutAnyNcclIsToldWhatItAlwaysWas) {
  const auto wishes = NcclWishes::Parse("");
  ASSERT_TRUE(wishes.ok()) << wishes.status();
  EXPECT_EQ(*wishes, NcclWishes());
  NcclConfig config;
  wishes->PutInto(config, 22809);
  EXPECT_EQ(config.version, NcclConfig().version);
  EXPECT_EQ(config.net_name, nullptr);
  EXPECT_EQ(config.max_ctas, NcclConfig::kUndefined);
  EXPECT_EQ(wishes->UnknownTo(22105), "");
}

TEST(NcclWishesTest, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> kWrong[] = {
      {"maxCtas=4", "\"maxCtas\", expected cgaClusterSize, minCTAs"},
      {"maxCTAs", "\"maxCTAs=\", expected a number of 1 to 64"},
      {"maxCTAs=65", "\"maxCTAs=65\", expected a number of 1 to 64"},
      {"trafficClass=-1", "\"trafficClass=-1\", expected a number of 0 to 255"},
      {"minCTAs=8,maxCTAs=4", "\"minCTAs=8\", expected at most maxCTAs, which is 4"},
      {"minCTAs=8,minCTAs=8", "\"minCTAs=8\", expected it once"},
      {"netName=", "\"netName=\", expected the name of a network"},
      {"net\x1bName=IB", "\"net\\x1bName\", expected"},
  };
  for (const auto& [text, said] : kWrong) {
    const auto wishes = NcclWishes::Parse(text);
    ASSERT_FALSE(wishes.ok()) << text;
    EXPECT_EQ(wishes.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(wishes.status().message()), HasSubstr(said));
  }
}

}  // namespace
}  // namespace coordd
