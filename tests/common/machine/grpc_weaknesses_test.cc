#include "common/machine/grpc_weaknesses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coordd {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(GrpcWeaknesses, OldOnesHaveAll) {
  EXPECT_THAT(GrpcWeaknesses("1.51.1"),
              ElementsAre("CVE-2023-1428", "CVE-2023-32731", "CVE-2023-32732", "CVE-2023-33953",
                          "CVE-2023-4785", "CVE-2023-44487"));
  EXPECT_EQ(GrpcWeaknesses("1.30.2").size(), 6u);
}

TEST(GrpcWeaknesses, ASeriesMayBeMendedBeforeANewerOne) {
  EXPECT_THAT(GrpcWeaknesses("1.53.1"), Contains("CVE-2023-33953"));
  EXPECT_THAT(GrpcWeaknesses("1.53.2"), ElementsAre("CVE-2023-44487"));
  EXPECT_THAT(GrpcWeaknesses("1.54.0"), Contains("CVE-2023-33953"));
  // The two were mended by different releases of this one.
  EXPECT_THAT(GrpcWeaknesses("1.55.2"), ElementsAre("CVE-2023-4785", "CVE-2023-44487"));
  EXPECT_THAT(GrpcWeaknesses("1.55.3"), ElementsAre("CVE-2023-44487"));
}

TEST(GrpcWeaknesses, NewOnesHaveNone) {
  for (const char* version : {"1.59.2", "1.60.0", "1.76.0-dev", "2.0.0"})
    EXPECT_THAT(GrpcWeaknesses(version), IsEmpty()) << version;
  EXPECT_THAT(GrpcWeaknesses("1.59.1"), ElementsAre("CVE-2023-44487"));
}

TEST(GrpcWeaknesses, WhatIsNoVersionHasNone) {
  for (const char* text : {"", "1", "1.51", "unknown", "1.x.2"})
    EXPECT_THAT(GrpcWeaknesses(text), IsEmpty()) << text;
}

TEST(GrpcWeaknesses, ThePhraseNamesThemAndIsEmptyWithout) {
  EXPECT_THAT(GrpcWeaknessText("1.53.2"),
              HasSubstr("CVE-2023-44487, all of which coordd was tried"));
  EXPECT_THAT(GrpcWeaknessText("1.53.2"), Not(HasSubstr("33953")));
  EXPECT_EQ(GrpcWeaknessText("1.59.2"), "");
}

}  // namespace
}  // namespace coordd
