#include "server/generation/negotiated_sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/support/generation_parts.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class NegotiatedSetsTest : public ::testing::Test {
 protected:
  void TearDown() override {
    sets_.Settle();
    EXPECT_THAT(sets_.CheckConsistency(), IsOk());
  }

  GenerationParts parts_;
  NegotiatedSets& sets_ = parts_.sets;
};

TEST_F(NegotiatedSetsTest, ASetIsReadyOnceItIsSettled) {
  const ProcessSetId id = parts_.AddSet({0, 2});
  parts_.Submit(sets_.At(id), "w");
  EXPECT_FALSE(sets_.has_ready());
  sets_.Settle();
  EXPECT_THAT(sets_.TakeReady(), ElementsAre(id));
  EXPECT_FALSE(sets_.has_ready());
  sets_.At(id).table().TakeReady();
  sets_.Touch(sets_.At(id));
}

TEST_F(NegotiatedSetsTest, FindsTheOneThatStalls) {
  const ProcessSetId id = parts_.AddSet({0, 2});
  EXPECT_EQ(sets_.NextStall(), absl::InfiniteFuture());
  sets_.At(id).table().Report(Rank{0}, Gradient("w", {4}), kStart, parts_.failed);
  sets_.Touch(sets_.At(id));
  sets_.Settle();
  const absl::Time due = kStart + GenerationParts::kWarning;
  EXPECT_EQ(sets_.NextStall(), due);
  EXPECT_EQ(sets_.Stalling(due - absl::Seconds(1)), nullptr);
  EXPECT_EQ(sets_.Stalling(due), &sets_.At(id));
  sets_.Forgive(absl::Seconds(5));
  EXPECT_EQ(sets_.NextStall(), due + absl::Seconds(5));
  EXPECT_THAT(sets_.Stalled(due, absl::Seconds(1), 8), SizeIs(1));
  EXPECT_EQ(sets_.pending(), 1);
  sets_.Abandon();
  EXPECT_EQ(sets_.NextStall(), absl::InfiniteFuture());
  EXPECT_EQ(sets_.pending(), 0);
  EXPECT_THAT(sets_.Stalled(due, absl::Seconds(1), 8), IsEmpty());
  EXPECT_EQ(sets_.Find(Rank{0}, id, "w"), std::nullopt);
}

TEST_F(NegotiatedSetsTest, WhoIsNoMemberHearsWhoIs) {
  const ProcessSetId id = parts_.AddSet({0, 2});
  v1::TensorSpec tensor;
  tensor.set_name("w");
  tensor.set_process_set(ToInt(id));
  EXPECT_THAT(sets_.Of(Rank{0}, tensor), IsOk());
  EXPECT_THAT(sets_.Of(Rank{1}, tensor).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of ranks [0, 2]")));
  EXPECT_THAT(sets_.MaybeOf(Rank{1}, id), IsEmpty());
  sets_.Remove(id);
  EXPECT_EQ(sets_.Find(id), nullptr);
  EXPECT_THAT(sets_.Of(Rank{0}, tensor).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("")));
}

TEST_F(NegotiatedSetsTest, AJoinCountsInEachSetOfTheRankAlsoInLaterOnes) {
  std::vector<FailedTensor> refused;
  ASSERT_EQ(sets_.join().Join(Rank{2}, kStart, refused), JoinState::Outcome::kJoined);
  sets_.Join(Rank{2}, parts_.failed);
  const ProcessSetId later = parts_.AddSet({0, 2});
  for (SetNegotiation* set : {&sets_.OfAllRanks(), &sets_.At(later)}) {
    for (Rank rank : set->members().Ranks()) {
      if (rank != Rank{2}) set->table().Report(rank, Gradient("w", {4}), kStart, parts_.failed);
    }
    EXPECT_TRUE(set->table().has_ready());
    set->table().TakeReady();
  }
  EXPECT_THAT(parts_.failed, IsEmpty());
}

// A job may have made a hundred thousand, and its next generation takes over all in one turn.
TEST_F(NegotiatedSetsTest, ASetInWhichNothingWasNegotiatedHasNone) {
  constexpr int kSets = 100;
  for (int i = 0; i < kSets; ++i)
    ASSERT_TRUE(sets_.sets().AddNamed(absl::StrCat("s", i), Ranks({0, 1})).ok());
  EXPECT_EQ(sets_.negotiated(), 1) << "that of all ranks";
  SetNegotiation* const set = sets_.Find(ProcessSetId{7});
  ASSERT_NE(set, nullptr);
  EXPECT_EQ(set->id(), ProcessSetId{7});
  EXPECT_EQ(set, &sets_.At(ProcessSetId{7}));
  EXPECT_EQ(sets_.negotiated(), 2);
  EXPECT_EQ(sets_.Find(ProcessSetId{kSets + 1}), nullptr);
  sets_.Remove(ProcessSetId{7});
  sets_.Remove(ProcessSetId{8});  // that has none
  EXPECT_EQ(sets_.negotiated(), 1);
  EXPECT_EQ(sets_.Find(ProcessSetId{7}), nullptr);
  EXPECT_EQ(sets_.Find(ProcessSetId{8}), nullptr);
}

class EndedNegotiatedSetsTest : public testing::Test {
 protected:
  const std::vector<SessionId> by_rank_ = {SessionId{10}, SessionId{11}};
  const std::shared_ptr<ByteBudget> budget_ = std::make_shared<ByteBudget>(10 << 20);
  NegotiatedSets sets_{by_rank_,
                       {.set = {.slots = 4},
                        .stall_warning = absl::Minutes(1),
                        .stall_abort = absl::Minutes(2),
                        .budget = budget_}};
};

TEST_F(EndedNegotiatedSetsTest, AreFreedInPartsAlsoWhereNothingWasNegotiated) {
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(sets_.sets().AddNamed(absl::StrCat("set", 100 + i), Ranks({0, 1})).ok());
  const int64_t all = budget_->used();
  EXPECT_EQ(sets_.Free(150), 150) << "what 100 are found by, that of all ranks, and 49";
  EXPECT_EQ(budget_->used(), all * 51 / 100);
  EXPECT_EQ(sets_.Free(1000), 51);
  EXPECT_EQ(budget_->used(), 0);
}

// First what was pending when the generation ended, then all: a turn frees as much as it may, and
// what is left counts.
TEST_F(EndedNegotiatedSetsTest, AreFreedInParts) {
  for (int i = 0; i < 100; ++i)
    sets_.Add(*sets_.sets().AddNamed(absl::StrCat("set", 100 + i), Ranks({0, 1})));
  const int64_t of_sets = budget_->used();
  std::vector<FailedTensor> failed;
  for (int i = 0; i < 100; ++i) {
    TensorSpec grouped = Gradient(absl::StrCat("g", i), {4});
    grouped.group = absl::StrCat("group", i);
    grouped.group_size = 2;
    ReadinessTable& table = sets_.OfAllRanks().table();
    table.Report(Rank{0}, grouped, kStart, failed);
    table.Report(Rank{0}, Gradient(absl::StrCat("w", i), {4}), kStart, failed);
    table.Report(Rank{0}, Gradient(absl::StrCat("x", i), {4}), kStart, failed);
    table.Withdraw(Rank{0}, absl::StrCat("x", i), "its caller waits no longer", failed);
  }
  EXPECT_EQ(sets_.pending(), 200);
  const int64_t all = budget_->used();
  sets_.Abandon();
  EXPECT_EQ(budget_->used(), all);
  EXPECT_EQ(sets_.FreePending(50), 50);
  EXPECT_LT(budget_->used(), all);
  EXPECT_GT(budget_->used(), of_sets + (all - of_sets) / 2);
  EXPECT_EQ(sets_.FreePending(1000), 351 + 101)
      << "tensors, groups, what failed, what was kept for the next; and each set";
  EXPECT_EQ(budget_->used(), of_sets);
  EXPECT_EQ(sets_.FreePending(1000), 0);
  EXPECT_EQ(sets_.Free(150), 150) << "what 100 are found by, and 50";
  EXPECT_EQ(budget_->used(), of_sets * 51 / 100) << "that of all ranks is counted in none";
  EXPECT_EQ(sets_.Free(1000), 51);
  EXPECT_EQ(budget_->used(), 0);
}

}  // namespace
}  // namespace coordd
