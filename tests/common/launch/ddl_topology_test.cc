#include "common/launch/ddl_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/launch/launcher_detect.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(DdlTopology, AModeMayNameAShape) {
  EXPECT_THAT(ParseDdlMode("p:6x2x1x1"), IsOkAndHolds(DdlShape{6, 2, 1, 1}));
  EXPECT_THAT(ParseDdlMode("p:6x18x4x2"), IsOkAndHolds(DdlShape{6, 18, 4, 2}));
  EXPECT_THAT(ParseDdlMode("b:4x2"), IsOkAndHolds(DdlShape{4, 2, 1, 1}));
  EXPECT_THAT(ParseDdlMode("p"), IsOkAndHolds(DdlShape{}));
  for (const char* text :
       {"", "6x2", "p:", "p:6x", "p:0x1", "p:6x2x1x1x1", "p:6x2 ", "p 6", "p:6X2", "p:-6"})
    EXPECT_THAT(ParseDdlMode(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected")))
        << text;
}

TEST(DdlTopology, TheModeStandsAmongOtherOptions) {
  EXPECT_EQ(DdlModeIn("-mode p:6x2x1x1 "), "p:6x2x1x1");
  EXPECT_EQ(DdlModeIn("-dbg_level 2 --mode=b:4x2"), "b:4x2");
  EXPECT_EQ(DdlModeIn("-dbg_level 2"), "");
  EXPECT_EQ(DdlModeIn("-mode"), "");
}

TEST(DdlTopology, AHostListHasEachRankOnce) {
  const std::vector<DdlHost> hosts = {{"g28n14", {0, 2, 4}}, {"g28n15", {1, 3, 5}}};
  EXPECT_THAT(ParseDdlHostList("g28n14:0,2,4;g28n15:1,3,5"), IsOkAndHolds(hosts));
  EXPECT_THAT(ParseDdlHostList("gpu025.cluster:0;"),
              IsOkAndHolds(std::vector<DdlHost>{{"gpu025.cluster", {0}}}));
  EXPECT_THAT(ParseDdlHostList("a:0,1;b:1"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1 is there twice")));
  EXPECT_THAT(ParseDdlHostList("a:0;b:2"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1 is on no host")));
  for (const char* text : {"", "a", "a:", ":0", "a:0,", "a:0 b:1", ";"})
    EXPECT_THAT(ParseDdlHostList(text), Not(IsOk())) << text;
}

TEST(DdlTopology, HostsFillTheShape) {
  EXPECT_THAT(FillDdlShape({}, 3), IsOkAndHolds(DdlShape{0, 3, 1, 1}));
  EXPECT_THAT(FillDdlShape({.accelerators = 6, .racks = 2}, 6), IsOkAndHolds(DdlShape{6, 3, 2, 1}));
  EXPECT_THAT(FillDdlShape({6, 18, 4, 2}, 144), IsOkAndHolds(DdlShape{6, 18, 4, 2}));
  EXPECT_THAT(FillDdlShape({6, 18, 4, 2}, 143),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("6x18x4x2")));
  EXPECT_THAT(FillDdlShape({.racks = 2}, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("?x?x2x? ")));
  // A product beyond 64 bits is no hosts at all.
  constexpr int32_t kMany = 1 << 20;
  EXPECT_THAT(FillDdlShape({1, kMany, kMany, kMany}, 1), Not(IsOk()));
}

TEST(DdlTopology, LabelsSortAsTheHostsAreNamed) {
  EXPECT_THAT(DdlLabels({6, 2, 1, 1}, 1), IsEmpty());
  EXPECT_THAT(DdlLabels({6, 2, 2, 1}, 2), ElementsAre("rack2"));
  EXPECT_THAT(DdlLabels({6, 2, 1, 2}, 3), ElementsAre("aisle2"));
  EXPECT_THAT(DdlLabels({6, 18, 4, 2}, 0), ElementsAre("aisle1", "rack1"));
  EXPECT_THAT(DdlLabels({6, 18, 4, 2}, 18 * 4 + 18), ElementsAre("aisle2", "rack2"));
  // coordd compares them as texts.
  const DdlShape many = {1, 2, 12, 1};
  for (size_t i = 1; i < 24; ++i) EXPECT_LE(DdlLabels(many, i - 1), DdlLabels(many, i)) << i;
}

TEST(DdlTopology, AProcessOfDdlrunHasTheLabelsOfItsHost) {
  const char* hosts = "h1:0,4;h2:1,5;h3:2,6;h4:3,7";
  EXPECT_THAT(DdlLabelsOfRank("-mode p:2x2x2x1 ", hosts, 5), IsOkAndHolds(ElementsAre("rack1")));
  EXPECT_THAT(DdlLabelsOfRank("-mode p:2x2x2x1 ", hosts, 6), IsOkAndHolds(ElementsAre("rack2")));
  EXPECT_THAT(DdlLabelsOfRank("-mode p", hosts, 6), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(DdlLabelsOfRank("-mode p:2x2x2x1 ", hosts, 8),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 8")));
  EXPECT_THAT(DdlLabelsOfRank("-mode p:2x3x1x1 ", hosts, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 hosts")));
}

// ddlrun starts mpirun, and says besides where each rank's host is.
TEST(DdlTopology, ItsPlaceIsOpenMpisWithATopology) {
  Environment environment = {
      {"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "3"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
      {"DDL_HOST_LIST", "h1:0;h2:1;h3:2"}, {"DDL_OPTIONS", "-mode p:1x1x3x1 "}};
  EXPECT_THAT(DetectLaunchPlace(environment, {}, "")->topology, ElementsAre("rack2"));
  environment["DDL_OPTIONS"] = "-mode p:1x3x1x1 ";
  EXPECT_THAT(DetectLaunchPlace(environment, {}, "")->topology, IsEmpty());
  EXPECT_THAT(DetectLaunchPlace(environment, {}, "")->warnings, IsEmpty());
  // It is no reason to fail: ranks are then in the launcher's order.
  environment["DDL_OPTIONS"] = "-mode p:1x2x1x1 ";
  EXPECT_EQ(DetectLaunchPlace(environment, {}, "")->rank, 1);
  EXPECT_THAT(DetectLaunchPlace(environment, {}, "")->warnings,
              ElementsAre(HasSubstr("DDL_OPTIONS=-mode p:1x2x1x1")));
}

}  // namespace
}  // namespace coordd
