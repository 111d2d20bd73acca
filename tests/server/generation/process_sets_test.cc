#include "server/generation/process_sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/generation/sets_left.h"
#include "tests/server/support/builders.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

TEST(MemberList, KnowsThePositionsOfAllRanks) {
  const MemberList all = MemberList::All(3);
  EXPECT_EQ(all.size(), 3);
  EXPECT_EQ(all.IndexOf(Rank{2}), 2);
  EXPECT_EQ(all.IndexOf(Rank{3}), -1);
  EXPECT_EQ(all.IndexOf(Rank{-1}), -1);
  EXPECT_THAT(all.Ranks(), ElementsAre(Rank{0}, Rank{1}, Rank{2}));
}

TEST(MemberList, KnowsThePositionsOfSomeRanks) {
  const MemberList some(Ranks({1, 4, 9}));
  EXPECT_EQ(some.IndexOf(Rank{4}), 1);
  EXPECT_EQ(some.At(2), Rank{9});
  for (int32_t stranger : {-1, 0, 2, 5, 10}) EXPECT_FALSE(some.Contains(Rank{stranger}));
}

TEST(ProcessSets, BeginWithTheOneOfAllRanks) {
  const ProcessSets sets(4);
  EXPECT_EQ(sets.Find(ProcessSetId{0})->size(), 4);
  EXPECT_EQ(sets.Find(ProcessSetId{1}), nullptr);
  EXPECT_EQ(sets.size(), 0);
}

TEST(ProcessSets, NumberNewOnesAndNeverReuseANumber) {
  ProcessSets sets(4);
  EXPECT_THAT(sets.Add(Ranks({0, 2})), IsOkAndHolds(ProcessSetId{1}));
  EXPECT_THAT(sets.Add(Ranks({3})), IsOkAndHolds(ProcessSetId{2}));
  EXPECT_THAT(sets.Find(ProcessSetId{1})->Ranks(), ElementsAre(Rank{0}, Rank{2}));
  ASSERT_THAT(sets.CheckRemove(ProcessSetId{1}), IsOk());
  sets.Remove(ProcessSetId{1});
  EXPECT_EQ(sets.Find(ProcessSetId{1}), nullptr);
  EXPECT_THAT(sets.NoSuchSet(ProcessSetId{1}),
              StatusIs(Code::kFailedPrecondition, HasSubstr("process set 1 was removed")));
  EXPECT_THAT(sets.NoSuchSet(ProcessSetId{9}),
              StatusIs(Code::kNotFound, HasSubstr("there is no process set 9")));
  EXPECT_THAT(sets.Add(Ranks({0, 2})), IsOkAndHolds(ProcessSetId{3}));
  EXPECT_EQ(sets.size(), 2);
}

TEST(ProcessSets, NameTheSetThatHasTheseRanksAlready) {
  ProcessSets sets(3);
  ASSERT_THAT(sets.Add(Ranks({0, 2})), IsOk());
  EXPECT_THAT(sets.Add(Ranks({0, 2})),
              StatusIs(Code::kAlreadyExists, HasSubstr("process set 1 has the ranks [0, 2]")));
  EXPECT_THAT(sets.Add(Ranks({0, 1, 2})),
              StatusIs(Code::kAlreadyExists, HasSubstr("process set 0 has the ranks")));
  EXPECT_THAT(sets.Add(Ranks({0})), IsOk());
}

TEST(ProcessSets, RefuseRanksThatAreNone) {
  ProcessSets sets(3);
  EXPECT_THAT(sets.Add({}), StatusIs(Code::kInvalidArgument, HasSubstr("without ranks")));
  EXPECT_THAT(sets.Add(Ranks({1, 3})),
              StatusIs(Code::kInvalidArgument, HasSubstr("rank 3, expected 0 to 2")));
  EXPECT_THAT(sets.Add(Ranks({-1})), StatusIs(Code::kInvalidArgument, HasSubstr("rank -1")));
  EXPECT_THAT(sets.Add(Ranks({1, 1})),
              StatusIs(Code::kInvalidArgument, HasSubstr("rank 1 behind 1, expected each")));
}

TEST(ProcessSets, KeepTheOneOfAllAndThePairs) {
  ProcessSets sets(3);
  ASSERT_THAT(sets.PairOf(Rank{2}, Rank{0}), IsOkAndHolds(ProcessSetId{1}));
  EXPECT_THAT(sets.CheckRemove(ProcessSetId{0}),
              StatusIs(Code::kInvalidArgument, HasSubstr("of all ranks, cannot be removed")));
  EXPECT_THAT(sets.CheckRemove(ProcessSetId{1}),
              StatusIs(Code::kInvalidArgument, HasSubstr("the pair of ranks [0, 2]")));
}

TEST(ProcessSets, HaveOneSetForEachPairInEitherOrder) {
  ProcessSets sets(4);
  EXPECT_THAT(sets.PairOf(Rank{2}, Rank{0}), IsOkAndHolds(ProcessSetId{1}));
  EXPECT_THAT(sets.PairOf(Rank{0}, Rank{2}), IsOkAndHolds(ProcessSetId{1}));
  EXPECT_THAT(sets.PairOf(Rank{2}, Rank{3}), IsOkAndHolds(ProcessSetId{2}));
  EXPECT_THAT(sets.PairsOf(Rank{2}), ElementsAre(ProcessSetId{1}, ProcessSetId{2}));
  EXPECT_THAT(sets.PairsOf(Rank{1}), IsEmpty());
  // What ranks ask for is a set of its own, with an order of its own.
  EXPECT_THAT(sets.Add(Ranks({0, 2})), IsOkAndHolds(ProcessSetId{3}));
  EXPECT_EQ(sets.pairs(), 2);
  EXPECT_EQ(sets.size(), 1);
}

// With so many entries at a time; in how many turns.
std::vector<SetsLeft::Set> InOrder(const SetsLeft& left, int64_t entries = 1000,
                                   int* turns = nullptr) {
  std::vector<SetsLeft::Set> all;
  SetsLeft::Walk walk;
  int taken = 0;
  for (; !walk.done(); ++taken) {
    int64_t more = entries;
    while (auto set = walk.Next(left, more)) all.push_back(*std::move(set));
  }
  if (turns != nullptr) *turns = taken;
  return all;
}

TEST(ProcessSets, LeaveWhatWasAskedForToTheNextGeneration) {
  const auto sets = std::make_shared<ProcessSets>(5);
  EXPECT_THAT(sets->Add(Ranks({0, 1, 3})), IsOk());
  EXPECT_THAT(sets->Add(Ranks({1, 4})), IsOk());
  EXPECT_THAT(sets->Add(Ranks({0, 3})), IsOk());
  EXPECT_THAT(sets->Add(Ranks({2})), IsOk());
  sets->Remove(ProcessSetId{4});
  EXPECT_THAT(sets->PairOf(Rank{0}, Rank{2}), IsOk());
  EXPECT_THAT(sets->AddNamed("a", Ranks({0})), IsOk());
  // Of the end of set 2 some have heard.
  const SetsLeft left(sets, {ProcessSetId{2}});
  EXPECT_EQ(left.last(), ProcessSetId{4});
  int turns = 0;
  const auto all = InOrder(left, /*entries=*/2, &turns);
  EXPECT_EQ(turns, 2) << "each number is looked at once";
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].id, ProcessSetId{1});
  EXPECT_EQ(all[0].ranks, Ranks({0, 1, 3}));
  EXPECT_EQ(all[1].id, ProcessSetId{3});
  EXPECT_EQ(all[1].ranks, Ranks({0, 3}));
  EXPECT_EQ(sets->size(), 4) << "they are there for whoever asks again";
  EXPECT_EQ(InOrder(left).size(), 2u);
}

TEST(ProcessSets, ThatSurvivorsHaveSaidAreLeftWhereNobodyHasHeardOfTheirEnd) {
  const auto said = [](const std::map<int32_t, std::vector<int32_t>>& sets, int32_t last,
                       int64_t position) {
    return std::make_shared<const v1::ProcessSets>(ProcessSetsOf(sets, last, position));
  };
  const auto older = said({{2, {0}}, {4, {1}}}, 4, 5);
  const auto newer = said({{1, {0}}, {2, {0}}, {3, {1}}, {4, {1}}, {6, {0, 1}}}, 6, 9);
  for (const int64_t entries : {1, 2, 1000}) {
    const auto all = InOrder(SetsLeft({older, newer, older, newer}), entries);
    ASSERT_EQ(all.size(), 3u) << "1 and 3 have ended for somebody";
    EXPECT_EQ(all[0].id, ProcessSetId{2});
    EXPECT_EQ(all[1].ranks, Ranks({1}));
    EXPECT_EQ(all[2].id, ProcessSetId{6});
  }
  EXPECT_EQ(SetsLeft({older, newer}).last(), ProcessSetId{6});
  EXPECT_TRUE(InOrder(SetsLeft()).empty());
}

TEST(ProcessSets, OneHasNoPairTwice) {
  ProcessSets sets(3);
  EXPECT_THAT(sets.Restore(ProcessSetId{5}, Ranks({0, 2}), /*is_pair=*/true), IsOk());
  EXPECT_THAT(sets.Restore(ProcessSetId{6}, Ranks({0, 2}), /*is_pair=*/true),
              StatusIs(Code::kInvalidArgument, HasSubstr("sets 5 and 6 are the same pair")));
  EXPECT_EQ(*sets.PairOf(Rank{0}, Rank{2}), ProcessSetId{5});
}

TEST(ProcessSets, MayHaveTheSameRanksOnceSomeAreLostAndKeepTheirNumbers) {
  ProcessSets sets(3);
  EXPECT_THAT(sets.Restore(ProcessSetId{1}, Ranks({0, 2}), /*is_pair=*/false), IsOk());
  EXPECT_THAT(sets.Restore(ProcessSetId{3}, Ranks({0, 2}), /*is_pair=*/false), IsOk());
  EXPECT_THAT(sets.Restore(ProcessSetId{4}, Ranks({0, 1, 2}), /*is_pair=*/false), IsOk());
  sets.NoteEarlier(6);
  EXPECT_THAT(sets.Add(Ranks({0, 2})), StatusIs(Code::kAlreadyExists, HasSubstr("process set")));
  sets.Remove(ProcessSetId{1});
  EXPECT_NE(sets.Find(ProcessSetId{3}), nullptr);
  EXPECT_THAT(sets.Add(Ranks({0, 2})), StatusIs(Code::kAlreadyExists, HasSubstr("set 3")));
  EXPECT_EQ(*sets.Add(Ranks({1})), ProcessSetId{7});
  sets.Remove(ProcessSetId{7});
  EXPECT_THAT(sets.NoSuchSet(ProcessSetId{2}),
              StatusIs(Code::kFailedPrecondition, HasSubstr("none of its ranks is left")));
  EXPECT_THAT(sets.NoSuchSet(ProcessSetId{7}),
              StatusIs(Code::kFailedPrecondition, "process set 7 was removed"));
}

TEST(ProcessSets, AreBoundedByTheirMembers) {
  constexpr int32_t kWorld = 1 << 17;
  ProcessSets sets(kWorld);
  std::vector<Rank> ranks = MemberList::All(kWorld).Ranks();
  absl::Status last;
  int added = 0;
  while (last.ok() && added < 1000) {
    ranks.erase(ranks.begin() + added);  // each a different set
    last = sets.Add(ranks).status();
    if (last.ok()) ++added;
  }
  EXPECT_THAT(last, StatusIs(Code::kResourceExhausted, HasSubstr("16777216")));
  EXPECT_GE(added, 128);
  EXPECT_THAT(sets.PairOf(Rank{0}, Rank{1}), IsOk());
}

TEST(ProcessSets, OfOneRankAreRefusedAsSuch) {
  ProcessSets sets(4, std::make_shared<ByteBudget>(3000));
  ASSERT_THAT(sets.Add(Ranks({0})), IsOk());
  EXPECT_THAT(sets.Add(Ranks({1})),
              StatusIs(Code::kResourceExhausted,
                       HasSubstr("no room for a process set of 1 rank beside 1 set and 0 pairs")));
}

TEST(ProcessSets, AreBoundedInNumber) {
  ProcessSets sets(1 << 10);
  for (int32_t a = 0; a < 1 << 10; ++a) {
    for (int32_t b = 0; b < 1 << 9; ++b) {
      if (b != a && !sets.PairOf(Rank{a}, Rank{b}).ok()) {
        EXPECT_EQ(sets.pairs(), static_cast<int64_t>(ProcessSets::kMaxSets));
        EXPECT_THAT(sets.Add(Ranks({1})), StatusIs(Code::kResourceExhausted,
                                                   HasSubstr(absl::StrCat(ProcessSets::kMaxSets))));
        return;
      }
    }
  }
  FAIL() << "nothing was refused";
}

TEST(ListString, ShortensLongLists) {
  EXPECT_EQ(ListString({}), "[]");
  EXPECT_EQ(ListString(Ranks({0, 2})), "[0, 2]");
  EXPECT_THAT(ListString(MemberList::All(100).Ranks()), HasSubstr("30, 31 and 68 more]"));
}

TEST(ProcessSets, TakeOfTheOwnersBytesAndGiveThemBack) {
  const auto budget = std::make_shared<ByteBudget>(16 << 10);
  {
    ProcessSets sets(100, budget), others(100, budget);
    absl::Status last;
    int32_t added = 0;
    for (int32_t rank = 0; rank < 99 && last.ok(); ++rank) {
      last = (rank % 2 == 0 ? sets : others).Add(Ranks({rank, 99})).status();
      if (last.ok()) ++added;
    }
    EXPECT_GT(added, 3);
    EXPECT_THAT(last, StatusIs(Code::kResourceExhausted, HasSubstr("--max-bytes-per-owner")));
    EXPECT_THAT(sets.AddNamed("tp", Ranks({1, 2})),
                StatusIs(Code::kResourceExhausted, HasSubstr("owner")));
    EXPECT_THAT(sets.PairOf(Rank{4}, Rank{5}),
                StatusIs(Code::kResourceExhausted, HasSubstr("owner")));
    EXPECT_LE(budget->used(), budget->limit());
    EXPECT_THAT(sets.Restore(ProcessSetId{50}, Ranks({1, 2}), /*is_pair=*/false), IsOk())
        << "what there was before is there again";
    sets.Remove(ProcessSetId{50});
    sets.Remove(ProcessSetId{1});
    EXPECT_THAT(sets.PairOf(Rank{4}, Rank{5}), IsOk());
  }
  EXPECT_EQ(budget->used(), 0);
}

}  // namespace
}  // namespace coordd
