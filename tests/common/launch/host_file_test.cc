// Hosts with slots: -H and hosts files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/launch/host_list.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

HostSlots Host(const std::string& host, int32_t slots = 0, int32_t max_slots = 0,
               const std::string& user = "") {
  return {host, slots, max_slots, user};
}

TEST(ParseHostsOption, TakesHostsWithAndWithoutSlots) {
  EXPECT_THAT(*ParseHostsOption("h1:4,h2:2"), ElementsAre(Host("h1", 4), Host("h2", 2)));
  EXPECT_THAT(*ParseHostsOption("h1"), ElementsAre(Host("h1")));
  EXPECT_THAT(*ParseHostsOption("h1, h2:2"), ElementsAre(Host("h1"), Host("h2", 2)));
  EXPECT_THAT(*ParseHostsOption("[fd00::1]:4,[::1]"), ElementsAre(Host("fd00::1", 4), Host("::1")));
  EXPECT_THAT(*ParseHostsOption("n[1-2,7]:8,m"),
              ElementsAre(Host("n1", 8), Host("n2", 8), Host("n7", 8), Host("m")));
}

TEST(ParseHostsOption, AddsUpWhatIsRepeated) {
  EXPECT_THAT(*ParseHostsOption("h1,h1,h2,h1:4"), ElementsAre(Host("h1", 6), Host("h2")));
}

TEST(ParseHostsOption, PointsAtTheColumn) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "column 1"},           {"h1:", "column 4"},       {"h1:0", "column 4: found 0 slots"},
      {"h1:x", "column 4"},       {"h1,,h2", "column 4"},    {"h1:4 h2", "column 6"},
      {"h1:4:5", "column 5"},     {"[h1]:4", "column 1"},    {"[::1]x:4", "column 1"},
      {"h1:9999999", "column 4"}, {"a,b[2-1]:4", "column 3"}};
  for (const auto& [text, error] : cases) {
    EXPECT_THAT(ParseHostsOption(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(error)))
        << text;
  }
}

TEST(ParseHostCounts, TakesPairs) {
  EXPECT_THAT(*ParseHostCounts("grid03 1 grid05 1 grid01 2"),
              ElementsAre(Host("grid03", 1), Host("grid05", 1), Host("grid01", 2)));
  for (const char* text : {"", "grid03", "grid03 x", "grid03 1 grid05", "3,1"})
    EXPECT_FALSE(ParseHostCounts(text).ok()) << text;
}

TEST(ParseHostWords, CountsMentions) {
  EXPECT_THAT(*ParseHostWords("a a b\na"), ElementsAre(Host("a", 3), Host("b", 1)));
  EXPECT_THAT(*ParseHostPerSlotFile("a\n\nb extra\n a \n"),
              ElementsAre(Host("a", 2), Host("b", 1)));
  EXPECT_FALSE(ParseHostWords("a;b").ok());
  EXPECT_FALSE(ParseHostPerSlotFile("").ok());
}

TEST(ParseHostFile, TakesEachLaunchersLines) {
  EXPECT_THAT(*ParseHostFile("h1 slots=4\nh2 slots=2\n"),
              ElementsAre(Host("h1", 4), Host("h2", 2)));
  EXPECT_THAT(*ParseHostFile("# ours\n\nme@h1 slots=4 max_slots=8 # fast\nh2\n"),
              ElementsAre(Host("h1", 4, 8, "me"), Host("h2")));
  EXPECT_THAT(*ParseHostFile("h1 slots = 4 max-slots=8"), ElementsAre(Host("h1", 4, 8)));
  EXPECT_THAT(*ParseHostFile("h1:4\nh2\n[::1]:2"),
              ElementsAre(Host("h1", 4), Host("h2"), Host("::1", 2)));
  EXPECT_THAT(*ParseHostFile("h1 4\r\nh2 2\r\n"), ElementsAre(Host("h1", 4), Host("h2", 2)));
  EXPECT_THAT(*ParseHostFile("c1.example 4 all.q@c1.example UNDEFINED\n"),
              ElementsAre(Host("c1.example", 4)));
  EXPECT_THAT(*ParseHostFile("h1\nh1\nh2\n"), ElementsAre(Host("h1", 2), Host("h2")));
}

TEST(ParseHostFile, NamesTheLineAndTheColumn) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "names no host"},
      {"# nothing\n", "names no host"},
      {"h1\nh2 slots=x", "line 2 of the hosts file \"h2 slots=x\", column 10"},
      {"h1 slots=0", "found 0 slots"},
      {"h1 cores=4", "\"cores\""},
      {"h1 slots", "without '='"},
      {"h1;h2", "column 3"},
      {"h1:4x", "column 5"},
      {"@h1", "column 1"},
      {"me@", "column 4"}};
  for (const auto& [text, error] : cases) {
    EXPECT_THAT(ParseHostFile(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(error)))
        << text;
  }
}

// The fuzzer's little brother, which always runs.
TEST(HostGrammars, EndOnRandomInput) {
  const std::string alphabet = "anx019-[],(): \n#=.@slots\t\xff";
  Random random(11);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint64_t size = random.Below(24); size > 0; --size)
      text += alphabet[random.Below(alphabet.size())];
    for (const absl::Status& status :
         {ExpandHostList(text).status(), ExpandTasksPerNode(text).status(),
          ParseHostsOption(text).status(), ParseHostFile(text).status(),
          ParseHostWords(text).status(), ParseHostCounts(text).status(),
          ParseTopologyShape(text).status()}) {
      ASSERT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << text << ": " << status;
    }
    if (const auto hosts = ExpandHostList(text); hosts.ok()) {
      ASSERT_EQ(ExpandHostList(CompressHostList(*hosts)).value(), *hosts) << text;
    }
  }
}

}  // namespace
}  // namespace coordd
