#include "server/members/rank_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RankSet, InsertsAndErasesOnce) {
  const MemberList all = MemberList::All(130);
  RankSet set(all);
  EXPECT_TRUE(set.Insert(Rank{129}));
  EXPECT_FALSE(set.Insert(Rank{129}));
  EXPECT_TRUE(set.Contains(Rank{129}));
  EXPECT_TRUE(set.Erase(Rank{129}));
  EXPECT_FALSE(set.Erase(Rank{129}));
  EXPECT_TRUE(set.empty());
}

TEST(RankSet, TakesNeighboursAtOnce) {
  const MemberList all = MemberList::All(200);
  RankSet set(all);
  set.Insert(Rank{150});
  const RankSlice neighbours(all, {Rank{63}, Rank{65}, Rank{64}});
  EXPECT_FALSE(set.ContainsAnyOf(neighbours));
  set.InsertAll(neighbours);
  EXPECT_THAT(set.Ranks(), ElementsAre(Rank{63}, Rank{64}, Rank{65}, Rank{150}));
  EXPECT_TRUE(set.CountsAreRight());
  EXPECT_TRUE(set.ContainsAnyOf(RankSlice(all, {Rank{65}})));
  EXPECT_FALSE(set.ContainsAnyOf(RankSlice(all, {Rank{66}, Rank{149}})));
}

TEST(RankSet, ComplementStaysWithinTheWorld) {
  for (int32_t world : {1, 63, 64, 65, 128, 131}) {
    const MemberList all = MemberList::All(world);
    RankSet set(all);
    EXPECT_EQ(set.Complement().size(), world);
    EXPECT_TRUE(set.Complement().CountsAreRight());
    for (int32_t rank = 0; rank < world; ++rank) set.Insert(Rank{rank});
    EXPECT_TRUE(set.full());
    EXPECT_THAT(set.Complement().Ranks(), IsEmpty());
  }
}

TEST(RankSet, ListsTheFirstRanksInOrder) {
  const MemberList all = MemberList::All(200);
  RankSet set(all);
  for (int32_t rank : {150, 3, 64, 63}) set.Insert(Rank{rank});
  EXPECT_THAT(set.FirstRanks(3), ElementsAre(Rank{3}, Rank{63}, Rank{64}));
  EXPECT_THAT(set.Ranks(), ElementsAre(Rank{3}, Rank{63}, Rank{64}, Rank{150}));
}

TEST(RankSet, HasABitForEachMemberOfAProcessSet) {
  const MemberList members({Rank{3}, Rank{500}, Rank{100000}});
  RankSet set(members);
  EXPECT_EQ(set.size_bytes(), 8);
  EXPECT_TRUE(set.Insert(Rank{100000}));
  EXPECT_TRUE(set.Contains(Rank{100000}));
  EXPECT_FALSE(set.Contains(Rank{500}));
  EXPECT_THAT(set.Complement().Ranks(), ElementsAre(Rank{3}, Rank{500}));
  set.Insert(Rank{3});
  set.Insert(Rank{500});
  EXPECT_TRUE(set.full());
}

TEST(RankSet, CombinesWithOthersOfTheSameMembers) {
  const MemberList all = MemberList::All(70);
  RankSet even(all);
  RankSet low(all);
  for (int32_t rank = 0; rank < 70; rank += 2) even.Insert(Rank{rank});
  for (int32_t rank = 0; rank < 4; ++rank) low.Insert(Rank{rank});
  EXPECT_THAT(low.Without(even).Ranks(), ElementsAre(Rank{1}, Rank{3}));
  EXPECT_FALSE(even.CoversAllWith(low));
  EXPECT_TRUE(even.CoversAllWith(even.Complement()));
}

TEST(RanksString, NamesThreeAndCountsTheRest) {
  EXPECT_EQ(RanksString({Rank{4}}, 1), "rank 4");
  EXPECT_EQ(RanksString({Rank{4}, Rank{7}}, 2), "ranks 4, 7");
  EXPECT_EQ(RanksString({Rank{0}, Rank{1}, Rank{2}, Rank{3}}, 131), "ranks 0, 1, 2 and 128 more");
}

}  // namespace
}  // namespace coordd
