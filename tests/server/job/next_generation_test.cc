// A generation that is proposed is made over turns: what the one before has left of process sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <variant>
#include <vector>

#include "server/job/next_generation.h"
#include "tests/server/support/builders.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;

// Generation 2 of the ranks 0 and 2 of the one before.
class NextGenerationTest : public ::testing::Test {
 protected:
  static constexpr int32_t kSets = 3000;

  NextGenerationTest() {
    for (int32_t number = 1; number <= kSets; ++number) {
      const bool of_lost = number == 7;
      EXPECT_THAT(sets_->Restore(ProcessSetId{number}, Ranks(of_lost ? std::vector{1} : all_),
                                 /*is_pair=*/false),
                  IsOk());
    }
  }
  SetsLeft Left() const { return {sets_, {}}; }
  std::unique_ptr<NextGeneration> Next(const SetsLeft& left) {
    v1::JobRecord record;
    record.set_generation(2);
    record.set_min_workers(2);
    v1::CoordinatorMessage head;
    head.set_epoch(5);
    head.set_generation(2);
    return std::make_unique<NextGeneration>(
        record, head, left, std::vector<Rank>{Rank{1}, Rank{-1}, Rank{0}},
        std::make_shared<GenerationState>(
            GenerationIdentity{
                .job = "train", .epoch = Epoch{5}, .generation = Generation{2}, .budget = budget_},
            options_, std::vector<SessionId>{SessionId{3}, SessionId{1}}));
  }
  static int Turns(NextGeneration& next) {
    int turns = 1;
    for (; !next.Continue(); ++turns) EXPECT_FALSE(next.whole());
    return turns;
  }

  const std::vector<int32_t> all_ = {0, 1, 2};
  const std::shared_ptr<ByteBudget> budget_ = std::make_shared<ByteBudget>(int64_t{1} << 30);
  const std::shared_ptr<ProcessSets> sets_ = std::make_shared<ProcessSets>(3);
  ServerOptions options_;
};

TEST_F(NextGenerationTest, IsMadeOverTurns) {
  const auto next = Next(Left());
  EXPECT_GE(Turns(*next), kSets * 16 / NextGeneration::kEntriesATurn);
  EXPECT_EQ(next->state()->process_sets(), kSets - 1) << "of one no rank is left";
  EXPECT_THAT(next->state()->CheckConsistency(), IsOk());
}

TEST_F(NextGenerationTest, TellsAndStoresTheSameSets) {
  const auto next = Next(Left());
  Turns(*next);
  v1::ProcessSets told;
  Effects effects;
  next->found()->Tell({SessionId{3}, SessionId{1}}, effects);
  for (const Outgoing& out : effects.outgoing) {
    const auto& deliver = std::get<Deliver>(out);
    EXPECT_THAT(deliver.to, ElementsAre(SessionId{3}, SessionId{1})) << "one message for all";
    EXPECT_EQ(deliver.message->epoch(), 5);
    EXPECT_EQ(deliver.message->generation(), 2);
    EXPECT_EQ(deliver.message->process_sets().more(), &out != &effects.outgoing.back());
    EXPECT_EQ(deliver.message->process_sets().last_process_set(), kSets);
    told.MergeFrom(deliver.message->process_sets());
  }
  told.clear_more();
  ASSERT_EQ(told.sets_size(), kSets - 1);
  EXPECT_EQ(told.sets(6).process_set(), 8);
  EXPECT_THAT(told.sets(6).ranks(), ElementsAre(0, 1)) << "in the order that they have now";
  v1::JobRecord stored;
  ASSERT_TRUE(stored.ParseFromString(next->TakeStored()));
  EXPECT_EQ(stored.min_workers(), 2);
  EXPECT_EQ(stored.process_sets().SerializeAsString(), told.SerializeAsString());
  const FoundSets again(v1::CoordinatorMessage(), stored.process_sets());
  EXPECT_EQ(again.parts().size(), effects.outgoing.size());
}

TEST_F(NextGenerationTest, NobodyIsToldWhereThereHaveBeenNone) {
  const auto next = Next(SetsLeft());
  EXPECT_EQ(Turns(*next), 1);
  EXPECT_TRUE(next->found()->empty());
  v1::JobRecord stored;
  ASSERT_TRUE(stored.ParseFromString(next->TakeStored()));
  EXPECT_FALSE(stored.has_process_sets());
}

TEST_F(NextGenerationTest, ThatIsForNothingIsFreedInPartsAndTheSetsAreThereForTheNextProposal) {
  Effects effects;
  Graveyard graveyard;
  const Turn turn{kStart, effects, &graveyard};
  auto next = Next(Left());
  ASSERT_FALSE(next->Continue());
  EXPECT_GT(budget_->used(), 0);
  next->Bury(turn);
  next.reset();
  EXPECT_EQ(graveyard.Free(), Graveyard::kPiecesATurn) << "there is more than a turn's";
  while (!graveyard.empty()) graveyard.Free();
  EXPECT_EQ(budget_->used(), 0);
  next = Next(Left());
  Turns(*next);
  EXPECT_EQ(next->state()->process_sets(), kSets - 1);
}

}  // namespace
}  // namespace coordd
