#include "common/launch/host_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string Expanded(const std::string& list) {
  const auto hosts = ExpandHostList(list);
  return hosts.ok() ? absl::StrJoin(*hosts, " ") : std::string(hosts.status().message());
}

TEST(ExpandHostList, ExpandsWhatSchedulersWrite) {
  const std::pair<const char*, const char*> cases[] = {
      {"nid[001140-001141,003]", "nid001140 nid001141 nid003"},
      {"nid[002836,003928]", "nid002836 nid003928"},
      {"gnode[10,20,25,37]", "gnode10 gnode20 gnode25 gnode37"},
      {"n[9-11]", "n9 n10 n11"},
      {"n[09-11]", "n09 n10 n11"},
      {"n[099-101]", "n099 n100 n101"},
      {"a[1-2]b[3-4]", "a1b3 a1b4 a2b3 a2b4"},
      {"x[1-2]-hsn0", "x1-hsn0 x2-hsn0"},
      {"tux[0-2,12,20-21]", "tux0 tux1 tux2 tux12 tux20 tux21"},
      {"h1,h2", "h1 h2"},
      {"gpu025", "gpu025"},
      {"a1 b[1-2]\n c", "a1 b1 b2 c"},
      {" a , b ", "a b"},
      {"[1-3]", "1 2 3"},
      {"a,a", "a a"},
      {"n[1][2-3]", "n12 n13"},
      {"n1.example.org", "n1.example.org"}};
  for (const auto& [list, hosts] : cases) EXPECT_EQ(Expanded(list), hosts) << list;
  EXPECT_THAT(*ExpandHostList("linux[0000-1023]"), SizeIs(1024));
  EXPECT_EQ(ExpandHostList("linux[0000-1023]")->back(), "linux1023");
}

TEST(ExpandHostList, PointsAtTheColumn) {
  const std::pair<const char*, const char*> cases[] = {
      {"n[3-1]", "column 3: found the range 3-1"},
      {"n[1-", "column 5: found the end"},
      {"n[1", "column 4: found the end"},
      {"n[", "column 3: found the end"},
      {"n[]", "column 3: found ']'"},
      {"n[a-b]", "column 3: found 'a'"},
      {"n[1]]", "column 5: found ']'"},
      {"", "column 1: found the end"},
      {",a", "column 1: found ','"},
      {"a,", "column 3: found the end"},
      {"a,,b", "column 3: found ','"},
      {"bgp[123x456]", "prism"},
      {"a b;c", "column 4: found ';'"},
      {"n[99999999999999999999]", "column 3: found the number"}};
  for (const auto& [list, error] : cases) {
    EXPECT_THAT(Expanded(list), AllOf(HasSubstr(error), HasSubstr("expected"))) << list;
    EXPECT_FALSE(ExpandHostList(list).ok()) << list;
  }
  EXPECT_THAT(Expanded(std::string(500, 'a') + "[2-1]"), HasSubstr("\"..."));
}

TEST(ExpandHostList, RefusesWhatWouldEatTheMemory) {
  for (const char* list :
       {"a[0-999999999]b[0-9]", "a[0-1048576]", "a[0-9999]b[0-9999]", "a[1-600000],b[1-600000]",
        "a[1-1000]b[1-1000]c[1-1000]d[1-1000]e[1-1000]f[1-1000]g[1-1000]"}) {
    EXPECT_THAT(ExpandHostList(list), StatusIs(absl::StatusCode::kInvalidArgument,
                                               HasSubstr(absl::StrCat("at most ", kMaxHosts))));
  }
  const std::string longest(kMaxHostNameBytes, 'a');
  EXPECT_THAT(ExpandHostList(longest), IsOk());
  EXPECT_FALSE(ExpandHostList(longest + "a").ok());
  EXPECT_FALSE(ExpandHostList("a[" + std::string(300, '0') + "1]").ok());
  EXPECT_THAT(ExpandHostList(longest.substr(10) + "[1-1000000]"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("memory")));
}

TEST(CompressHostList, FoldsNeighbours) {
  EXPECT_EQ(CompressHostList({}), "");
  EXPECT_EQ(CompressHostList({"a"}), "a");
  EXPECT_EQ(CompressHostList({"n8", "n9", "n10", "n11"}), "n[8-9,10-11]");
  EXPECT_EQ(CompressHostList({"n1", "n3", "m1", "n4"}), "n[1,3],m1,n4");
  EXPECT_EQ(CompressHostList({"n07", "n08", "n9"}), "n[07-08,9]");
  EXPECT_EQ(CompressHostList({"login", "login"}), "login,login");
}

TEST(CompressHostList, IsUndoneByExpandHostList) {
  Random random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> hosts;
    const uint64_t count = 1 + random.Below(12);
    uint64_t number = random.Below(120);
    for (uint64_t i = 0; i < count; ++i) {
      const char* prefixes[] = {"n", "n", "node-1-", "x2c", ""};
      std::string digits = absl::StrCat(number);
      if (random.Below(3) == 0) digits.insert(0, random.Below(3), '0');
      if (random.Below(9) == 0) digits += "-hsn0";
      hosts.push_back(absl::StrCat(prefixes[random.Below(5)], digits));
      number = random.Below(2) == 0 ? number + 1 : random.Below(1000000000000000000u);
    }
    const std::string folded = CompressHostList(hosts);
    EXPECT_EQ(ExpandHostList(folded).value_or(std::vector<std::string>()), hosts) << folded;
  }
}

TEST(ExpandTasksPerNode, ExpandsRepetitions) {
  EXPECT_THAT(*ExpandTasksPerNode("4(x2),3"), ElementsAre(4, 4, 3));
  EXPECT_THAT(*ExpandTasksPerNode("1(x4)"), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(*ExpandTasksPerNode("2"), ElementsAre(2));
  EXPECT_THAT(*ExpandTasksPerNode("128(x150)"), SizeIs(150));
}

TEST(ExpandTasksPerNode, PointsAtTheColumn) {
  const std::pair<const char*, const char*> cases[] = {{"2,4(x0)", "column 6: found 0 nodes"},
                                                       {"", "column 1"},
                                                       {"0", "column 1: found 0 tasks"},
                                                       {"4(2)", "column 3: found '2'"},
                                                       {"4(x2", "column 5: found the end"},
                                                       {"4;", "column 2: found ';'"},
                                                       {"4(x9999999)", "column 4"},
                                                       {"1(x1048576),1", "at most 1048576"}};
  for (const auto& [text, error] : cases) {
    EXPECT_THAT(ExpandTasksPerNode(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(error)))
        << text;
  }
}

TEST(ParseTopologyShape, TakesFactors) {
  EXPECT_THAT(*ParseTopologyShape("8x4x2"), ElementsAre(8, 4, 2));
  EXPECT_THAT(*ParseTopologyShape("6"), ElementsAre(6));
  for (const char* text : {"", "x", "2x", "2x0", "2*3", "1x1x1x1x1x1x1x1x1"})
    EXPECT_FALSE(ParseTopologyShape(text).ok()) << text;
}

TEST(SameHost, ComparesShortNamesAndInterfaces) {
  EXPECT_TRUE(SameHost("node1", "Node1.cluster.example"));
  EXPECT_TRUE(SameHost("node1-ib0", "node1"));
  EXPECT_TRUE(SameHost("x1000-hsn1", "x1000-hsn0"));
  EXPECT_FALSE(SameHost("node1", "node10"));
  EXPECT_FALSE(SameHost("node-1", "node-2"));
  EXPECT_FALSE(SameHost("10.0.0.1", "10.0.0.2"));
  EXPECT_TRUE(SameHost("fd00::2", "fd00::2"));
}

}  // namespace
}  // namespace coordd
