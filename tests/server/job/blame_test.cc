#include "server/job/blame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/random.h"
#include "tests/server/support/builders.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

Blame Of(const Pairs& witness_and_suspect) {
  Blame blame;
  for (const auto& [witness, suspect] : witness_and_suspect)
    blame.Report(Rank{witness}, Rank{suspect});
  return blame;
}

std::vector<Rank> CulpritsOf(const Pairs& links, const std::set<Rank>& marked = {}) {
  return Of(links).Culprits(marked);
}

TEST(Blame, NobodyWithoutAReport) {
  EXPECT_THAT(CulpritsOf({}), IsEmpty());
  EXPECT_THAT(CulpritsOf({{2, 2}}), IsEmpty());
}

TEST(Blame, WhoIsBlamedAndBlamesNobody) { EXPECT_THAT(CulpritsOf({{3, 0}}), ElementsAre(Rank{0})); }

TEST(Blame, OfTwoThatBlameEachOtherTheHigherRank) {
  EXPECT_THAT(CulpritsOf({{1, 3}, {3, 1}}), ElementsAre(Rank{3}));
  EXPECT_THAT(CulpritsOf({{3, 1}, {1, 3}}), ElementsAre(Rank{3}));
}

TEST(Blame, OfTwoThatBlameEachOtherTheOneThatMoreBlame) {
  EXPECT_THAT(CulpritsOf({{0, 3}, {3, 0}, {1, 0}}), ElementsAre(Rank{0}));
}

TEST(Blame, OneThatNobodyReachesIsOneCulprit) {
  EXPECT_THAT(CulpritsOf({{0, 2}, {1, 2}, {3, 2}, {2, 0}, {2, 1}}), ElementsAre(Rank{2}));
}

TEST(Blame, OneThatReachesNobodyIsOneCulpritToo) {
  EXPECT_THAT(CulpritsOf({{2, 0}, {2, 1}, {2, 3}}), ElementsAre(Rank{2}));
}

TEST(Blame, WhoWasAtSuchALinkBefore) {
  EXPECT_THAT(CulpritsOf({{1, 3}}, {Rank{1}}), ElementsAre(Rank{1}));
  EXPECT_THAT(CulpritsOf({{1, 3}, {3, 1}}, {Rank{1}}), ElementsAre(Rank{1}));
  EXPECT_THAT(CulpritsOf({{1, 3}}, {Rank{1}, Rank{3}}), ElementsAre(Rank{3}));
}

TEST(Blame, AsManyAsItTakes) {
  EXPECT_THAT(CulpritsOf({{0, 1}, {2, 3}}), ElementsAre(Rank{1}, Rank{3}));
  // Each of 0 to 3 has three links; the two in between have all of them.
  EXPECT_THAT(CulpritsOf({{0, 8}, {1, 8}, {2, 8}, {3, 8}, {0, 9}, {1, 9}, {2, 9}, {3, 9}}),
              ElementsAre(Rank{8}, Rank{9}));
}

TEST(Blame, ASwitchBetweenTwoHalves) {
  Pairs links;
  for (int32_t a = 0; a < 20; ++a)
    for (int32_t b = 20; b < 60; ++b) links.emplace_back(a, b);
  std::vector<Rank> smaller;
  for (int32_t a = 0; a < 20; ++a) smaller.push_back(Rank{a});
  EXPECT_EQ(CulpritsOf(links), smaller);
}

TEST(Blame, KeepsOneLinkToTellOf) {
  const Blame blame = Of({{0, 1}, {2, 3}, {3, 2}});
  EXPECT_EQ(blame.LinkOf(Rank{3}).witness, Rank{2});
  EXPECT_EQ(blame.LinkOf(Rank{1}).witness, Rank{0});
}

// Against all subsets.
TEST(Blame, IsNeverLargerThanItHasToBe) {
  constexpr int32_t kRanks = 7;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    Pairs links;
    for (uint64_t i = 0; i <= random.Below(8); ++i) {
      const auto draw = [&] { return static_cast<int32_t>(random.Below(kRanks)); };
      links.emplace_back(draw(), draw());
    }
    const Blame blame = Of(links);
    const std::vector<Rank> culprits = blame.Culprits({});
    const auto covers = [&](auto contains) {
      return std::all_of(blame.links().begin(), blame.links().end(), [&](const BlamedLink& link) {
        return contains(link.witness) || contains(link.suspect);
      });
    };
    ASSERT_TRUE(covers([&](Rank rank) {
      return std::find(culprits.begin(), culprits.end(), rank) != culprits.end();
    })) << seed;
    for (uint32_t subset = 0; subset < 1u << kRanks; ++subset) {
      if (static_cast<size_t>(__builtin_popcount(subset)) >= culprits.size()) continue;
      ASSERT_FALSE(covers([&](Rank rank) { return (subset >> ToInt(rank) & 1) != 0; })) << seed;
    }
  }
}

}  // namespace
}  // namespace coordd
