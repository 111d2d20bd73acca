// The messages, plans, schedules, stalls and groups of a generation, each by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>

#include "server/generation/rank_groups.h"
#include "tests/server/support/generation_parts.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(GenerationMessages, OnlyWhatAllActOnHasAPosition) {
  GenerationParts parts;
  EXPECT_EQ(parts.messages.New()->position(), 0);
  EXPECT_EQ(parts.messages.NewOrdered()->position(), 1);
  parts.messages.RestorePosition(8);
  EXPECT_EQ(parts.messages.NewOrdered()->position(), 9);
  EXPECT_EQ(parts.messages.New()->generation(), 7);
}

TEST(GenerationMessages, FailuresOfTheSameRanksShareAMessage) {
  GenerationParts parts;
  const TensorFault fault{absl::CancelledError("withdrawn"), Rank{1}};
  parts.messages.DeliverFailures({{ProcessSetId{0}, "a", fault, Ranks({0, 1})},
                                  {ProcessSetId{0}, "b", fault, Ranks({0, 1})},
                                  {ProcessSetId{0}, "c", fault, Ranks({2})}},
                                 parts.effects);
  ASSERT_THAT(parts.effects.outgoing, SizeIs(2));
  EXPECT_THAT(parts.Told(0).tensor_failures().failures(), SizeIs(2));
  EXPECT_THAT(parts.ToldTo(1), ElementsAre(SessionId{12}));
  ASSERT_THAT(parts.effects.events, SizeIs(1));  // one cause
  EXPECT_EQ(parts.effects.events[0].tensors, 3);
}

TEST(GenerationPlans, EachSetIsPlannedByItselfAndCounted) {
  GenerationParts parts;
  const ProcessSetId id = parts.AddSet({0, 2});
  parts.Submit(parts.sets.OfAllRanks(), "w");
  parts.Submit(parts.sets.At(id), "v");
  parts.plans.PlanReady({kStart, parts.effects});
  ASSERT_THAT(parts.effects.outgoing, SizeIs(2));
  EXPECT_THAT(parts.ToldTo(1), ElementsAre(SessionId{10}, SessionId{12}));
  EXPECT_EQ(parts.Told(0).position(), 1);
  EXPECT_EQ(parts.Told(1).position(), 2);
  EXPECT_EQ(parts.Told(1).plan().batches(0).sequence(), 1);
  EXPECT_EQ(parts.plans.batches(), 2);
  EXPECT_EQ(parts.plans.tensors(), 2);
  parts.plans.PlanReady({kStart, parts.effects});
  EXPECT_THAT(parts.effects.outgoing, SizeIs(2)) << "nothing is planned twice";
}

// Until the ranks execute it without asking.
void GenerationPartsRepeat(GenerationParts& parts) {
  for (int step = 0; step < 8 && parts.schedules.empty(); ++step) {
    parts.Submit(parts.sets.OfAllRanks(), "w");
    parts.plans.PlanReady({kStart, parts.effects});
  }
}

TEST(GenerationSchedules, AJoinWaitsForTheCutOfWhatTheRankExecutes) {
  GenerationParts parts(/*schedule_steps=*/2);
  GenerationPartsRepeat(parts);
  ASSERT_EQ(parts.schedules.table().in_force(), 1);
  for (int32_t rank = 0; rank < 3; ++rank) {
    v1::ScheduleAck ack;
    ack.set_id(1);
    ASSERT_THAT(parts.schedules.OnAck(Rank{rank}, ack), IsOk());
  }
  EXPECT_TRUE(parts.schedules.Defer({Rank{1}, std::nullopt}, parts.effects));
  EXPECT_TRUE(parts.schedules.defers());
  EXPECT_EQ(parts.schedules.TakeDue(), std::nullopt);
  v1::FreezeReply reply;
  reply.set_id(1);
  for (int32_t rank = 0; rank < 3; ++rank) {
    const absl::StatusOr<bool> cut =
        parts.schedules.OnFreezeReply(Rank{rank}, reply, parts.effects);
    ASSERT_THAT(cut, IsOk());
    EXPECT_EQ(*cut, rank == 2);
  }
  const auto due = parts.schedules.TakeDue();
  ASSERT_TRUE(due.has_value());
  EXPECT_EQ(due->rank, Rank{1});
  EXPECT_FALSE(parts.schedules.defers());
}

TEST(GenerationSchedules, NothingWaitsWithoutASchedule) {
  GenerationParts parts(/*schedule_steps=*/2);
  EXPECT_FALSE(parts.schedules.Defer({Rank{1}, std::nullopt}, parts.effects));
  std::vector<FailedTensor> failed;
  EXPECT_FALSE(parts.schedules.WithdrawJoin(Rank{1}, "changed its mind", failed));
  EXPECT_THAT(failed, IsEmpty());
}

TEST(StallWatch, TellsOfAStallOnceAndOfItsEnd) {
  GenerationParts parts;
  SetNegotiation& set = parts.sets.OfAllRanks();
  set.table().Report(Rank{0}, Gradient("w", {4}), kStart, parts.failed);
  parts.sets.Touch(set);
  parts.sets.Settle();
  const absl::Time due = kStart + GenerationParts::kWarning;
  EXPECT_EQ(parts.stalls.NextDeadline(), due);
  EXPECT_FALSE(parts.stalls.IsAwaited(Rank{1}, due));
  parts.stalls.Tick({due, parts.effects});
  parts.stalls.Tick({due, parts.effects});
  ASSERT_THAT(parts.effects.events, SizeIs(1));
  EXPECT_THAT(parts.effects.events[0].text, HasSubstr("missing ranks 1"));
  EXPECT_TRUE(parts.stalls.IsAwaited(Rank{1}, due));
  EXPECT_FALSE(parts.stalls.IsAwaited(Rank{0}, due));
  set.table().Withdraw(Rank{0}, "w", "enough", parts.failed);
  parts.stalls.NoteEnded(parts.effects);
  ASSERT_THAT(parts.effects.events, SizeIs(2));
  EXPECT_EQ(parts.effects.events[1].kind, Event::Kind::kStallEnded);
}

TEST(StallWatch, WhatFailsSaysWhereTheProgramIsThatIsToBlame) {
  GenerationParts parts;
  SetNegotiation& set = parts.sets.OfAllRanks();
  for (int32_t rank : {0, 2})
    set.table().Report(Rank{rank}, Gradient("w", {4}), kStart, parts.failed);
  parts.sets.Touch(set);
  parts.sets.Settle();
  parts.stalls.SetWhereabouts(Rank{1}, "train.py:17");
  parts.stalls.Tick({kStart + GenerationParts::kAbort, parts.effects});
  ASSERT_THAT(parts.effects.outgoing, SizeIs(1));
  EXPECT_THAT(parts.Told(0).tensor_failures().failures(0).message(),
              HasSubstr("; rank 1 is at train.py:17"));
}

TEST(RankGroups, AreRangesOfMembers) {
  const GenerationParts parts;
  RankGroups groups(parts.messages.by_rank(), parts.sets.all());
  RankGroup* const two = groups.Find({SessionId{11}, 2});
  ASSERT_NE(two, nullptr);
  EXPECT_THAT(two->reporters.ranks, ElementsAre(Rank{1}, Rank{2}));
  EXPECT_EQ(groups.Find({SessionId{11}, 2}), two);
  EXPECT_EQ(groups.Find({SessionId{12}, 2}), nullptr);
}

}  // namespace
}  // namespace coordd
